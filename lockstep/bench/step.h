// What `lockstep bench step` measures: whole training steps on random data. Each contender is a job
// of its own, and they take turns in alternating rounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/bench/peers.h"
#include "lockstep/bench/step_figures.h"

namespace lockstep::bench {

const std::vector<std::string>& step_models();
const std::vector<std::string>& step_strategies();

struct StepOptions {
  std::string model = "simple-cnn";     // of step_models()
  std::vector<std::string> strategies;  // of step_strategies()
  int nproc = 2;                        // processes of a contender
  int64_t batch = 0;                    // samples of a process's step; 0: default_batch()
  int threads = 1;                      // of each process
  std::string
      mesh;  // of zero3's ranks: who shares a copy of the parameters (shared_copies()); "": a host's
  std::string optimizer = "fused";  // Lockstep's contenders; or "torch"
  int rounds = 7;
  double turn_ms = 1500;
  std::string device = "cpu";  // as device/choose.h takes it
  Peers peers = {};            // PyTorch's and DeepSpeed's contenders
};
int64_t default_batch(const std::string& model);

// Takes out PyTorch's and DeepSpeed's contenders that cannot run here, and says why.
void leave_out_absent(StepOptions& options);

// A row a strategy. `program` is the command `lockstep`: its `bench step` is what the contenders'
// processes run.
// Throws: LaunchError, Timeout.
std::vector<Row> measure_steps(const StepOptions& options, const std::string& program);

}  // namespace lockstep::bench
