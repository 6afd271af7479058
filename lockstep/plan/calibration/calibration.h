// The measurements of a machine, and how they become a Machine with the Stack that goes with it
// (lockstep plan --calibrate). Pure, but for find_calibration(), which reads a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/machine/machine.h"
#include "lockstep/plan/machine/stack.h"
#include "lockstep/plan/model/model_shape.h"

namespace lockstep::inline v0::plan {

// A product of two square matrices, on all ranks of the host at once.
struct ProductSample {
  Precision precision = Precision::kFloat32;
  int64_t size = 0;    // rows, columns and inner elements
  double seconds = 0;  // of one product
};

// The time of a collective of `n` bytes: alpha + beta n, fitted over sizes.
struct CollectiveSample {
  Collective collective = Collective::kAllReduce;
  int ranks = 2;
  double alpha = 0;  // seconds
  double beta = 0;   // seconds a byte, of what Machine's collective_time() counts
};

// The parts of a training step of a model in float32, on a rank that does not communicate.
struct PartSample {
  ModelShape model = {};
  int64_t batch = 1;       // sequences
  int64_t sequence = 128;  // tokens of each
  // Seconds. 0: not measured.
  double layer_forward = 0, layer_backward = 0;  // of one layer
  double ends_forward = 0, ends_backward = 0;    // of embeddings, head, loss, and the step's own
  double update = 0;                             // of all parameters
  double step =
      0;  // of the measured model's step: what a rank takes by itself, the mean over ranks
  double late = 0;  // how much longer the slowest rank takes, the mean over steps
};

// Everything of one machine. Of one rank, while all ranks of the host do the same.
struct Measurements {
  std::string name = "this machine";
  int ranks = 1;  // of the host
  bool host = true;
  int processors = 0;  // of the host; 0: not known
  std::vector<ProductSample> products = {};
  double copied = 0;           // bytes a second, read and written ones together
  double launch = 0;           // seconds of an operator that has nothing to do
  double attention_flops = 0;  // FLOP/s of attention in one kernel; 0: not measured
  double memory = 0;           // bytes that a rank may use
  double fixed_bytes = 0;      // that a rank holds before it has tensors
  std::vector<PartSample> parts = {};
  std::vector<CollectiveSample> inside = {};
  std::vector<CollectiveSample> between = {};  // empty: there is one host
  std::string inside_over = "shared memory";   // for the sources
  std::string between_over = {};
};

// A machine, and what the software reaches on it where that was measured.
struct Calibration {
  Machine machine;
  std::optional<Stack> stack;
};

// Throws InvalidArgument in one line where something is missing: no product in float32, no copy, no
// collective inside.
LOCKSTEP_API Calibration calibration_of(const Measurements& measured);

// The file that --hardware takes: a machine's JSON, with the stack under "stack".
LOCKSTEP_API std::string to_json(const Calibration& calibration);
// Throws InvalidArgument in one line that begins with `source`.
LOCKSTEP_API Calibration calibration_from_json(std::string_view text, const std::string& source);
// A machine by its name in the table, without a stack, or a file (anything with a '/' or ending in
// .json) of to_json(), or of a machine alone.
LOCKSTEP_API Calibration find_calibration(const std::string& name_or_file);

// The same machine with so many ranks on a host. Where they compute on its processors, they share
// its memory, and its processors once they are more than those. Pure.
LOCKSTEP_API Calibration with_ranks(Calibration calibration, int ranks_per_host);

// A product of size n runs at peak * (n / (n + half))^3, with the least sum of squared relative
// errors over the samples of a precision.
struct ProductFit {
  double peak = 0;  // FLOP/s; 0: no samples
  double half = 0;
  double error = 0;  // the largest relative one of the samples
};
LOCKSTEP_API ProductFit fit_products(const std::vector<ProductSample>& samples,
                                     Precision precision);

// The latency of a step and the bandwidth of a rank that explain the samples as rings: the medians
// of what each says by itself.
LOCKSTEP_API Link fit_link(const std::vector<CollectiveSample>& samples);

}  // namespace lockstep::inline v0::plan
