// Doorbell: how a rank that has waited in vain goes to sleep, and how those who publish something
// wake it. A futex: no system call on the way of those who are awake.
#pragma once

#include <chrono>

#include "lockstep/comm/rounds/region.h"

namespace lockstep::rounds {

class Doorbell {
 public:
  Doorbell(Region region, int rank) : region_(region), rank_(rank) {}

  // Wakes every rank that sleeps. To be called after a sequentially consistent store: then either
  // the sleeper sees what was stored, or this sees the sleeper.
  void ring() const {
    if (region_.header().sleepers.load(std::memory_order_seq_cst) != 0) wake_sleepers();
  }

  // Sleeps until the bell rings, or for `longest`. Between announce() and sleep() the caller looks
  // once more at what it waits for; withdraw() instead of sleep() if it came. May return early.
  void announce();
  void sleep(std::chrono::nanoseconds longest);
  void withdraw();

 private:
  void wake_sleepers() const;

  Region region_;
  int rank_;
  uint32_t seen_ = 0;
};

}  // namespace lockstep::rounds
