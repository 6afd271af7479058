// WaitedTicks: how long a rank was in calls that block, counted without asking the system for the time:
// small calls are over in a fraction of a microsecond.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "lockstep/core/ticks.h"

namespace lockstep {

// From any thread.
class WaitedTicks {
 public:
  void add(uint64_t ticks) noexcept { waited_.fetch_add(ticks, std::memory_order_relaxed); }

  double seconds() const noexcept {
    const auto waited = static_cast<double>(waited_.load(std::memory_order_relaxed));
    double rate = seconds_a_tick_.load(std::memory_order_relaxed);
    if (rate == 0) {
      const uint64_t now = ticks();
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - since_;
      rate = now > first_ ? passed.count() / static_cast<double>(now - first_) : 0;
      // Kept from then on: the system's clock is slewed, and a sum must not change by that.
      if (passed > std::chrono::milliseconds(20))
        seconds_a_tick_.store(rate, std::memory_order_relaxed);
    }
    return waited * rate;
  }

 private:
  std::atomic<uint64_t> waited_{0};
  mutable std::atomic<double> seconds_a_tick_{0};  // 0: not known yet
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  uint64_t first_ = ticks();
};

}  // namespace lockstep
