// RingMember: the memory and the ring's door, which a Producer or a Consumer and its slots share.
// Not a public header.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/core/deadline.h"
#include "lockstep/insitu/meeting.h"
#include "lockstep/insitu/ring_memory.h"

namespace lockstep::inline v0::insitu {

// Whether a ring's memory has this schema, before this process becomes a member: a stranger leaves
// no trace in the stream. Throws: Mismatch that names the difference; DataError if it is no ring.
void expect_schema(const std::string& name, int memory, const Schema& schema);

class RingMember {
 public:
  RingMember(Meeting meeting, bool producer)
      : door(std::move(meeting.listener), meeting.memory.get()),
        memory(std::move(meeting.memory), producer) {}

  // Before the memory: a process that cannot have a door has not been a member.
  Doorkeeper door;
  RingMemory memory;
};

}  // namespace lockstep::inline v0::insitu
