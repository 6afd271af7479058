#include "lockstep/timeline/clock_offset.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "lockstep/core/check.h"
#include "lockstep/core/ticks.h"

namespace lockstep::inline v0::timeline {
namespace {

int64_t trip_of(const PingPong& ping) {
  return ping.answered_ns - ping.asked_ns;
}

int64_t offset_of(const PingPong& ping) {
  return ping.their_ns - (ping.asked_ns + trip_of(ping) / 2);
}

}  // namespace

int64_t monotonic_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

ClockReading read_clocks() noexcept {
  ClockReading closest;
  uint64_t least = UINT64_MAX;
  // What comes in between, such as another process on this core, spoils a reading.
  for (int i = 0; i < 8; ++i) {
    const uint64_t before = ticks();
    const int64_t now_ns = monotonic_ns();
    const uint64_t apart = ticks() - before;
    if (apart >= least) continue;
    least = apart;
    closest = {before + apart / 2, now_ns};
  }
  return closest;
}

TickClock::TickClock(const ClockReading& first, const ClockReading& last) : last_(last) {
  if (last.ticks > first.ticks && last.ns > first.ns)
    ns_per_tick_ =
        static_cast<double>(last.ns - first.ns) / static_cast<double>(last.ticks - first.ticks);
}

int64_t TickClock::ns(uint64_t ticks) const {
  const auto ago = static_cast<double>(static_cast<int64_t>(last_.ticks - ticks));
  return last_.ns - std::llround(ago * ns_per_tick_);
}

ClockOffset clock_offset(std::vector<PingPong> trips) {
  LOCKSTEP_CHECK(!trips.empty(), "a round trip was measured");
  std::sort(trips.begin(), trips.end(),
            [](const PingPong& a, const PingPong& b) { return trip_of(a) < trip_of(b); });
  trips.resize(std::max<size_t>(1, trips.size() / 4));
  std::sort(trips.begin(), trips.end(),
            [](const PingPong& a, const PingPong& b) { return offset_of(a) < offset_of(b); });
  const PingPong& middle = trips[trips.size() / 2];
  return {.ns = offset_of(middle), .error_ns = (trip_of(middle) + 1) / 2};
}

}  // namespace lockstep::inline v0::timeline
