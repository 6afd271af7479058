// The clocks of the ranks' hosts.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/comm/communicator.h"
#include "lockstep/timeline/clock_offset.h"

namespace lockstep::inline v0::timeline {

// By how much the clock of rank `other` is ahead of rank `asker`'s, from some round trips of a
// message; both ranks call it. The asker gets the result, the other one zeros.
ClockOffset measure_clock(Communicator& comm, int asker, int other,
                          const std::function<int64_t()>& clock = monotonic_ns);

// By how much the clock of this rank's host is ahead of that of rank 0's host: 0 for ranks that
// read the same clock, those of one kernel, and measured with one rank for each other clock.
// Collective: all ranks call it.
ClockOffset clock_of_rank(Communicator& comm);

}  // namespace lockstep::inline v0::timeline
