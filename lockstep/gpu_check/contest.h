// Contest: training steps of one model on random data, to be timed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0::gpu_check {

// A model's shape and its batch: what contest.py is told too. Zeros where a kind has no such thing.
struct StepCase {
  std::string name;    // as tables have it
  std::string kind;    // "simple-cnn", "resnet-50", "bert", "lm"
  int64_t batch = 0;   // samples
  int64_t length = 0;  // tokens of a sample; of pictures: their side
  int64_t layers = 0, width = 0, heads = 0, inner = 0, vocabulary = 0;
  bool half = false;  // products in bfloat16, under autocast

  bool has_tokens() const { return kind == "bert" || kind == "lm"; }
  int64_t samples_or_tokens() const { return has_tokens() ? batch * length : batch; }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepCase, name, kind, batch, length, layers, width, heads, inner,
                                   vocabulary, half)

// SimpleCnn, a small and a base BERT, ResNet-50, a language model of 124 million parameters.
std::vector<StepCase> step_cases(bool small);

// Floating point operations of the products of a step, forward and twice as many backward, for the
// shape as it stands: what a share of a device's ceiling is counted by. 0: not counted.
double flop_of_step(const StepCase& one);

class Contest {
 public:
  virtual ~Contest() = default;
  // Gives the device a step: gradients to nothing, forward, backward, optimizer. Reads nothing.
  virtual void step() = 0;
};
// How steps are given to the device.
enum class Way { kEager, kGraph };
// On `device`; `comm` null: alone, else under DistributedDataParallel, whose ranks have batches of
// their own. As a graph: alone, captured already. Throws InvalidArgument where there are no graphs.
std::unique_ptr<Contest> make_contest(const StepCase& one, c10::Device device, Communicator* comm,
                                      Way way = Way::kEager);

// Milliseconds a step, over so many of them; the host waits at the begin and the end alone.
double ms_per_step(Contest& contest, c10::Device device, int steps);

}  // namespace lockstep::inline v0::gpu_check
