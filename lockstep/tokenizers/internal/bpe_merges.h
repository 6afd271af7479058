// Byte-pair encoding of one word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::inline v0::tokenizers {

struct BpeMerge {
  int32_t left, right, result;
};

// The pairs of tokens that are merged, and their order. Immutable once filled.
class BpeMerges {
 public:
  BpeMerges();

  // The merge of the next rank; of two merges of the same pair the later one applies.
  void add(const BpeMerge& merge);
  void set_byte(uint8_t byte, int32_t id) { bytes_[byte] = id; }

  // Appends the ids of `word`: starts with its bytes and repeatedly merges the pair of the lowest
  // rank, of those the leftmost. Bytes without a token are left out.
  void append_ids(std::string_view word, std::vector<int32_t>& ids) const;
  // The same for the tokens in `ids` from `first` on, in place.
  void merge(std::vector<int32_t>& ids, size_t first) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;

  struct Slot {
    int32_t left = -1, right = -1;  // left -1: free
    uint32_t rank = kNoRank;
    int32_t result = 0;
  };
  const Slot& find(int32_t left, int32_t right) const;
  size_t place(int32_t left, int32_t right) const;
  void grow();
  void merge_few(std::vector<int32_t>& ids, size_t first) const;
  void merge_many(std::vector<int32_t>& ids, size_t first) const;

  std::vector<Slot> slots_;  // a power of two, at most half full
  size_t used_ = 0;
  uint32_t next_rank_ = 0;
  int32_t bytes_[256];
};

}  // namespace lockstep::inline v0::tokenizers
