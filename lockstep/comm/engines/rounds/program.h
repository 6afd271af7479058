// Program: a staged collective as a sequence of rounds over the slots of a region: the owner copies
// in, the peers copy out (CICO, as MPI's shared-memory transports say).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/engines/rounds/region.h"

namespace lockstep::inline v0::rounds {

// The place in its slot of a rank's data for a round: `used` bytes (at most a slot, the same for
// all ranks and rounds of a call), at places that advance from turn to turn. A cache line that
// peers have read recently is slow to write, since it must be fetched from their caches first; a
// small call therefore writes to a place that the last calls of its size did not use. It needs all
// of a slot for that: with fewer places, 8 to 32 KiB take a third longer. A group that stages thus
// touches all its slots in time, a megabyte per rank.
class Slots {
 public:
  Slots(const Region& region, int64_t used) : region_(&region), step_(rounded_up(used)) {
    places_ = step_ == 0 ? 1 : std::max<int64_t>(1, region.shape().slot_bytes / step_);
  }
  std::byte* at(int rank, uint64_t global_round) const {
    const uint64_t turn = global_round / kSlots % static_cast<uint64_t>(places_);
    return region_->slot(rank, global_round) + static_cast<int64_t>(turn) * step_;
  }
  static int64_t rounded_up(int64_t bytes) {
    constexpr auto kStep = static_cast<int64_t>(kLine);
    return (bytes + kStep - 1) / kStep * kStep;
  }

 private:
  const Region* region_;
  int64_t step_;
  int64_t places_;
};

// The ranks whose slots a rank reads in each round.
enum class Reads : uint8_t { kNobody, kRoot, kEverybody };

// In round t of `rounds`, every rank writes its own slot (`produce`, possibly nothing). Once the
// ranks that it reads have written theirs, it reads those (`consume`). No data depends on an
// earlier round, so ranks may produce ahead.
//
// Where work is shared out, `combine` comes in between: once all ranks have produced, each reads
// all slots and writes to its own again, at a place that no rank has read; they consume once all
// have combined.
//
// A tensor longer than a slot is cut into chunks, one per round. Where every rank sends a different
// part to every other (scatter, reduce_scatter, all_to_all), a slot is cut into N equal lanes, lane
// d for rank d.
struct Program {
  explicit Program(Slots its_slots) : slots(its_slots) {}

  Slots slots;
  int64_t rounds = 1;  // at least 1: an empty tensor still meets its peers
  // All ranks use the largest `rounds` of any of them (all_to_all: no rank knows the whole matrix).
  bool dynamic = false;
  Reads reads = Reads::kNobody;
  std::function<void(int64_t round, std::byte* payload)> produce;     // may be empty
  std::function<void(int64_t round, uint64_t global_round)> combine;  // may be empty
  std::function<void(int64_t round, uint64_t global_round)> consume;  // may be empty
};

// `region` must outlive the program; the call's memory must stay valid while it runs. The work of
// an all_reduce of `shares_from` bytes or more is shared out.
Program make_program(const Call& call, int rank, const Region& region, int64_t shares_from);

}  // namespace lockstep::inline v0::rounds
