#include "lockstep/tokenizers/internal/piece_trie.h"

#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::tokenizers {

PieceTrie::PieceTrie() : slots_(256), ids_{kNoId}, shift_(32 - 8) {}

int32_t PieceTrie::insert(std::string_view piece, int32_t id) {
  uint32_t node = kRoot;
  for (const char byte : piece) node = grow(node, static_cast<uint8_t>(byte));
  return std::exchange(ids_[node], id);
}

uint32_t PieceTrie::grow(uint32_t node, uint8_t byte) {
  if (const uint32_t known = step(node, byte); known != kNowhere) return known;
  if (ids_.size() > kMostBytes)
    throw DataError("a vocabulary of more than 16 million bytes; use a smaller one");
  if (ids_.size() * 2 >= slots_.size()) {
    const std::vector<Slot> former =
        std::exchange(slots_, std::vector<Slot>(slots_.size() * 2, Slot{0, 0}));
    --shift_;
    for (const Slot& slot : former) {
      if (slot.child != 0) put(slot);
    }
  }
  const auto child = static_cast<uint32_t>(ids_.size());
  ids_.push_back(kNoId);
  put({node << 8 | byte, child});
  return child;
}

void PieceTrie::put(Slot slot) {
  size_t i = place(slot.key);
  while (slots_[i].child != 0) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = slot;
}

}  // namespace lockstep::inline v0::tokenizers
