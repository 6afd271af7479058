// StopAgreement: after which step training stops for a signal that came to one rank: the same on all ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// How many steps lie between two looks: as many as take half a second, so that a look, one small collective, costs
// nothing that can be measured, and a signal waits for half a second and a step. Pure.
class StopCadence {
 public:
  static constexpr double kSeconds = 0.5;

  // Counts a step; true: look now, and then call looked().
  bool step() { return ++steps_ >= every_; }
  // `seconds`: since the look before, the longest of any rank. The same on all ranks.
  void looked(double seconds);
  int64_t every() const { return every_; }

 private:
  int64_t steps_ = 0, every_ = 1;
};

// One thread, the communicator's.
class StopAgreement {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  // `told`: the signal that this rank was told to stop by (StopSignals::received); 0: none. `clock`: for tests.
  StopAgreement(Communicator comm, std::function<int()> told,
                Clock clock = std::chrono::steady_clock::now);

  // After each step, on all ranks. The signal that stops them, the same on all ranks; 0: none does. Of several the
  // greatest: SIGTERM before SIGUSR1. Now and then one all_reduce of two numbers; the first step has one. Throws what
  // the communicator throws.
  int after_step();

 private:
  Communicator comm_;
  std::function<int()> told_;
  Clock clock_;
  StopCadence cadence_;
  std::chrono::steady_clock::time_point looked_at_;
};

}  // namespace lockstep
