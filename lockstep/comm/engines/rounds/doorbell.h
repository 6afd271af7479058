// Doorbell: puts a rank to sleep that has waited in vain, and lets publishers wake it. It is a
// futex: ranks that are awake make no system call.
#pragma once

#include <chrono>

#include "lockstep/comm/engines/rounds/region.h"

namespace lockstep::inline v0::rounds {

class Doorbell {
 public:
  Doorbell(Region region, int rank) : region_(region), rank_(rank) {}

  // Wakes every sleeping rank. Call it after a sequentially consistent store: then either the
  // sleeper sees the stored value, or this call sees the sleeper.
  void ring() const {
    if (region_.header().sleepers.load(std::memory_order_seq_cst) != 0) wake_sleepers();
  }

  // Sleeps until the bell rings, or for `longest`; may return early. Between announce() and sleep()
  // the caller checks once more for the value that it waits for, and calls withdraw() instead of
  // sleep() if it has arrived.
  void announce();
  void sleep(std::chrono::nanoseconds longest);
  void withdraw();

 private:
  void wake_sleepers() const;

  Region region_;
  int rank_;
  uint32_t seen_ = 0;
};

}  // namespace lockstep::inline v0::rounds
