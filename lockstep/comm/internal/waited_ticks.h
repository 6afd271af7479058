// WaitedTicks: how long a rank was in blocking calls, counted without asking the system for the
// time, since small calls complete in a fraction of a microsecond.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "lockstep/core/ticks.h"

namespace lockstep::inline v0 {

// The same moment on both clocks.
struct TickMoment {
  uint64_t ticks = 0;
  std::chrono::steady_clock::time_point time;
};

// Reads the time between two reads of the ticks. It retries up to eight times if something that
// took long came in between, such as another process on this core; the closest reading counts.
template <typename ReadTicks, typename ReadTime>
TickMoment read_moment(ReadTicks&& read_ticks, ReadTime&& read_time) noexcept {
  const uint64_t close = about_ticks(std::chrono::microseconds(4));
  TickMoment closest;
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 8 && least > close; ++i) {
    const uint64_t before = read_ticks();
    const auto time = read_time();
    const uint64_t apart = read_ticks() - before;
    if (apart >= least) continue;
    least = apart;
    closest = {.ticks = before + apart / 2, .time = time};
  }
  return closest;
}

// Thread-safety: any thread.
class WaitedTicks {
 public:
  void add(uint64_t ticks) noexcept { waited_.fetch_add(ticks, std::memory_order_relaxed); }

  double seconds() const noexcept {
    const auto waited = static_cast<double>(waited_.load(std::memory_order_relaxed));
    double rate = seconds_a_tick_.load(std::memory_order_relaxed);
    if (rate == 0) {
      const TickMoment now = moment();
      const std::chrono::duration<double> passed = now.time - first_.time;
      rate = now.ticks > first_.ticks
                 ? passed.count() / static_cast<double>(now.ticks - first_.ticks)
                 : 0;
      // The rate is fixed from now on: the system's clock is slewed, and that must not change a
      // sum. After a second, the error of the two moments is negligible.
      if (passed >= std::chrono::seconds(1)) seconds_a_tick_.store(rate, std::memory_order_relaxed);
    }
    return waited * rate;
  }

 private:
  static TickMoment moment() noexcept { return read_moment(ticks, std::chrono::steady_clock::now); }

  std::atomic<uint64_t> waited_{0};
  mutable std::atomic<double> seconds_a_tick_{0};  // 0: not known yet
  TickMoment first_ = moment();
};

}  // namespace lockstep::inline v0
