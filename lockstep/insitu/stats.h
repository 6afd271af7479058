// RingStats: counts of what has passed through a ring.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::insitu {

// The state of a producer or consumer.
enum class MemberState : uint32_t {
  kNone = 0,
  kOpen = 1,
  kClosed = 2,  // it has said that it has finished
  kLost = 3,    // its process has ended without a word
};

// One producer or consumer. The row stays after its end, until a new member takes its place.
struct LOCKSTEP_API MemberStats {
  bool producer = false;
  MemberState state = MemberState::kNone;
  int32_t pid = 0;        // in its own PID namespace
  uint64_t produced = 0;  // samples that it has committed
  uint64_t dropped = 0;   // samples that it has not placed, and those that it has overwritten
  uint64_t consumed = 0;  // samples that it has taken
  double waited_seconds = 0;
};

// The counts since the ring was made. They are read one after another while others go on, so sums
// may be off by what happens meanwhile.
struct LOCKSTEP_API RingStats {
  uint64_t produced = 0;     // committed
  uint64_t dropped = 0;      // not placed, as the ring was full, and overwritten by kDropOldest
  uint64_t consumed = 0;     // given back by a consumer, or released
  uint64_t abandoned = 0;    // begun and not committed, by a producer that gave up or was killed
  uint64_t redelivered = 0;  // taken by a consumer that was killed, and placed back
  int slots = 0;
  int full = 0;     // slots that wait for a consumer
  int writing = 0;  // slots that a producer fills
  int reading = 0;  // slots that a consumer holds
  std::vector<MemberStats> members;

  // Some lines for people: the counts, then a line for each member.
  std::string to_string() const;
};

}  // namespace lockstep::inline v0::insitu
