// StopAgreement: makes all ranks stop after the same step when one of them gets a signal.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The number of steps between two checks: as many as take half a second. A check, which is one
// small collective, then has no measurable cost, and a signal waits for at most half a second and a
// step. Pure.
class LOCKSTEP_API StopCadence {
 public:
  static constexpr double kSeconds = 0.5;

  // Counts a step. True: check now, then call looked().
  bool step() { return ++steps_ >= every_; }
  // `seconds`: the longest time of any rank since the check before; the same on all ranks.
  void looked(double seconds);
  int64_t every() const { return every_; }  // steps from one check to the next

 private:
  int64_t steps_ = 0, every_ = 1;
};

// Thread-safety: one thread, the communicator's.
class LOCKSTEP_API StopAgreement {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  // `told`: returns the signal that tells this rank to stop (StopSignals::received); 0: none.
  // `clock`: for tests.
  StopAgreement(Communicator comm, std::function<int()> told,
                Clock clock = std::chrono::steady_clock::now);

  // To be called after each step. Returns the signal that stops all ranks; 0: none. Of several
  // signals it is the greatest: SIGTERM before SIGUSR1.
  // Collective: all ranks.
  // Throws: the communicator's errors.
  // Cost: one all_reduce of two numbers in the first step and about every half second.
  int after_step();

 private:
  Communicator comm_;
  std::function<int()> told_;
  Clock clock_;
  StopCadence cadence_;
  std::chrono::steady_clock::time_point looked_at_;
};

}  // namespace lockstep::inline v0
