// The measurements of `lockstep bench step`: whole training steps on random data. Each contender is
// a job of its own, and they take turns in alternating rounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/bench/peers.h"
#include "lockstep/bench/step_figures.h"

namespace lockstep::inline v0::bench {

const std::vector<std::string>& step_models();
const std::vector<std::string>& step_strategies();

struct StepOptions {
  std::string model = "simple-cnn";     // one of step_models()
  std::vector<std::string> strategies;  // some of step_strategies()
  int nproc = 2;                        // processes of a contender
  int64_t batch = 0;                    // samples of a process's step; 0: default_batch()
  int threads = 1;                      // of each process
  // The mesh of zero3's ranks, which says which ranks share a copy of the parameters
  // (shared_copies()); "": those of a host.
  std::string mesh;
  std::string optimizer = "fused";  // Lockstep's contenders; or "torch"
  int rounds = 7;
  double turn_ms = 1500;
  std::string device = "cpu";  // as device/choose.h takes it
  Peers peers = {};            // PyTorch's and DeepSpeed's contenders
};
int64_t default_batch(const std::string& model);

// Removes PyTorch's and DeepSpeed's contenders that cannot run here, and prints the reason.
void leave_out_absent(StepOptions& options);

// Returns a row for each strategy. `program` is the command `lockstep`; the contenders' processes
// run its `bench step`.
// Throws: LaunchError, Timeout.
std::vector<Row> measure_steps(const StepOptions& options, const std::string& program);

}  // namespace lockstep::inline v0::bench
