// How a call uses the ranks' blocks of memory: what a rank copies into its own block, and what it
// takes from all blocks. Pure. Not a public header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0::peer {

// A slot of every rank's block holds a window of the call: some elements of each of its parts.
// Where a rank gives a part for every rank, each part has its share of the slot, at the same place
// on all ranks.
struct Layout {
  int64_t step = 0;    // elements of a part in a window
  int64_t stride = 0;  // bytes of a part's share of the slot
  // Windows that this rank needs; the same on all ranks except in an uneven all_to_all.
  int64_t windows = 1;
};
// `slot_bytes`: at least kAlign for every rank.
Layout lay_out(const Call& call, int size, int64_t slot_bytes);
inline constexpr int64_t kAlign = 128;

// Bytes of the device's memory, and their offset from the beginning of this rank's slot.
struct Gift {
  const std::byte* from = nullptr;
  int64_t slot = 0;
  int64_t bytes = 0;
};
std::vector<Gift> gifts(const Call& call, const Layout& layout, int64_t window, int rank);

// Elements to take from offset `slot` of the slots: those of rank `from`, or the reduction of all
// ranks' where `from` is -1.
struct Take {
  int from = -1;
  int64_t slot = 0;
  std::byte* to = nullptr;
  int64_t elements = 0;
};
std::vector<Take> takes(const Call& call, const Layout& layout, int64_t window, int rank);

// A rank's share of elements that all ranks reduce together.
struct Share {
  int64_t begin = 0;
  int64_t elements = 0;
};
Share share(int64_t elements, int rank, int size);

}  // namespace lockstep::inline v0::peer
