// How much of the communication of a trace was hidden behind the ranks' own work. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/timeline/chrome_trace.h"

namespace lockstep::inline v0::timeline {

// Times of one rank, in nanoseconds, over its steps, or over the whole trace where none are marked.
// A moment in which several collectives are under way counts once.
struct RankOverlap {
  int rank = 0;
  int64_t steps = 0;               // marked ones
  int64_t time = 0;                // of the steps, or of the trace
  int64_t collectives = 0;         // how many there were
  int64_t communication = 0;       // with a collective under way: the sum of the next three
  int64_t hidden = 0;              // while backward computed
  int64_t beside = 0;              // while the rank did something else
  int64_t waited = 0;              // while the rank waited in a call
  int64_t waited_in_backward = 0;  // of `waited`, within backward: mostly at its end
};

// By rank. Backward is what is marked as "backward", or as "forward and backward" where one call
// does both; on a device, which does it later than the host marks it, the device's spans of these
// names, and of "step", count. Only what is within a marked step counts, where steps are marked.
LOCKSTEP_API std::vector<RankOverlap> overlap_of(const std::vector<ReadEvent>& events);

}  // namespace lockstep::inline v0::timeline
