// The flight recorder's calls and a log's spans as events of a trace. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/timeline/chrome_trace.h"
#include "lockstep/timeline/clock_offset.h"
#include "lockstep/timeline/span_log.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0::timeline {

// The time of a recording, from `begun` to `ended`, in ticks.
struct Window {
  uint64_t begun = 0;
  uint64_t ended = 0;
};

// A call is one event, cut to the window, and another one for the time in which the rank waited in
// it. A call that was under way when the window began has the number "begun_before" 1, one that had
// not ended by its end "pending" 1, and one that never ended, since its communicator broke,
// "abandoned" 1.
LOCKSTEP_API std::vector<Event> events_of(const std::vector<trace::KeptCall>& calls,
                                          const Window& window, const TickClock& clock);
LOCKSTEP_API std::vector<Event> events_of(const std::vector<Span>& spans, const TickClock& clock);

}  // namespace lockstep::inline v0::timeline
