// One process of one contender of `lockstep bench step`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::inline v0::bench {

struct StepWork {
  std::string model;  // one of step_models()
  std::string
      strategy;       // ddp, ddp-bf16, ddp-timeline, average, horovod, independent, in-step, single
  int64_t batch = 0;  // samples of this process's step
  int threads = 1;
  bool fused = true;             // Lockstep's optimizer instead of torch::optim's
  std::vector<int> copies = {};  // ZeroOptions::copies
  std::string device = "cpu";    // as device/choose.h takes it
  std::string turns;             // see turns.h
};

// Trains steps on random data at each of its turns, until there are no more.
void run_step_rank(const StepWork& work);

}  // namespace lockstep::inline v0::bench
