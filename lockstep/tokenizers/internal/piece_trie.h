// PieceTrie: the longest known piece at the beginning of a text, byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::inline v0::tokenizers {

// A trie whose edges are one hash table of 8-byte slots: no pointers, a step is one probe.
class PieceTrie {
 public:
  static constexpr uint32_t kRoot = 0, kNowhere = UINT32_MAX;
  static constexpr int32_t kNoId = -1;

  PieceTrie();

  // All pieces together may have this many bytes.
  static constexpr size_t kMostBytes = (size_t{1} << 24) - 2;

  // Returns the id that the piece had before, or kNoId. Throws DataError beyond kMostBytes.
  int32_t insert(std::string_view piece, int32_t id);

  // The node after `text` from `node`; kNowhere where there is none.
  uint32_t walk(uint32_t node, std::string_view text) const {
    for (const char byte : text) {
      node = step(node, static_cast<uint8_t>(byte));
      if (node == kNowhere) break;
    }
    return node;
  }
  // The id of exactly this piece, or kNoId.
  int32_t find(std::string_view piece) const {
    const uint32_t node = walk(kRoot, piece);
    return node == kNowhere ? kNoId : ids_[node];
  }

  struct Match {
    int32_t id = kNoId;
    size_t length = 0;
  };
  // The longest piece, of at least one byte, at the beginning of `text`, when the path to `node`
  // has already been walked. `node` may be kNowhere.
  Match longest(uint32_t node, std::string_view text) const {
    Match match;
    for (size_t i = 0; i < text.size() && node != kNowhere; ++i) {
      node = step(node, static_cast<uint8_t>(text[i]));
      if (node != kNowhere && ids_[node] != kNoId) match = {ids_[node], i + 1};
    }
    return match;
  }

 private:
  struct Slot {
    uint32_t key;    // node << 8 | byte
    uint32_t child;  // 0: free; the root is never a child
  };

  size_t place(uint32_t key) const { return (key * 2654435769U) >> shift_; }
  uint32_t step(uint32_t node, uint8_t byte) const {
    const uint32_t key = node << 8 | byte;
    for (size_t i = place(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].child == 0) return kNowhere;
      if (slots_[i].key == key) return slots_[i].child;
    }
  }
  uint32_t grow(uint32_t node, uint8_t byte);
  void put(Slot slot);

  std::vector<Slot> slots_;   // a power of two, at most half full
  std::vector<int32_t> ids_;  // of each node
  int shift_;
};

}  // namespace lockstep::inline v0::tokenizers
