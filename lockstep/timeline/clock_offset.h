// The clocks of a trace: ticks as nanoseconds of a host's clock, and how far the clocks of two
// hosts are apart. Pure, except for read_clocks().
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::timeline {

// This host's CLOCK_MONOTONIC in nanoseconds.
LOCKSTEP_API int64_t monotonic_ns() noexcept;

// One moment on both clocks of a host.
struct ClockReading {
  uint64_t ticks = 0;  // core/ticks.h
  int64_t ns = 0;      // CLOCK_MONOTONIC, which all processes of a host share
};
LOCKSTEP_API ClockReading read_clocks() noexcept;

// Converts ticks by two readings.
class LOCKSTEP_API TickClock {
 public:
  TickClock(const ClockReading& first, const ClockReading& last);
  int64_t ns(uint64_t ticks) const;  // CLOCK_MONOTONIC

 private:
  ClockReading last_;
  double ns_per_tick_ = 1;
};

// One question to another host, and its answer.
struct PingPong {
  int64_t asked_ns = 0;     // this host's clock
  int64_t their_ns = 0;     // the other's clock, between the question and the answer
  int64_t answered_ns = 0;  // this host's clock
};

// By how much the other host's clock is ahead, and how wrong that may be.
struct ClockOffset {
  int64_t ns = 0;
  int64_t error_ns = 0;  // half of the round trip that was taken
};
// The median over the quarter of the round trips that took the shortest, at least one: a long one
// was delayed in one direction, and it is not known in which.
// Requires: at least one.
LOCKSTEP_API ClockOffset clock_offset(std::vector<PingPong> trips);

}  // namespace lockstep::inline v0::timeline
