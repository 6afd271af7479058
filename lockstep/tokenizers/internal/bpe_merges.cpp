#include "lockstep/tokenizers/internal/bpe_merges.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>
#include <utility>

namespace lockstep::inline v0::tokenizers {

BpeMerges::BpeMerges() : slots_(256) {
  std::fill(std::begin(bytes_), std::end(bytes_), -1);
}

size_t BpeMerges::place(int32_t left, int32_t right) const {
  const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  return (key * 0x9e3779b97f4a7c15U) >> 32 & (slots_.size() - 1);
}

const BpeMerges::Slot& BpeMerges::find(int32_t left, int32_t right) const {
  size_t i = place(left, right);
  while (slots_[i].left >= 0 && (slots_[i].left != left || slots_[i].right != right))
    i = (i + 1) & (slots_.size() - 1);
  return slots_[i];  // a free slot has no rank
}

void BpeMerges::add(const BpeMerge& merge) {
  if ((used_ + 1) * 2 > slots_.size()) grow();
  Slot& slot = const_cast<Slot&>(find(merge.left, merge.right));
  used_ += slot.left < 0;
  slot = {merge.left, merge.right, next_rank_++, merge.result};
}

void BpeMerges::grow() {
  const std::vector<Slot> former = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
  for (const Slot& slot : former) {
    if (slot.left >= 0) const_cast<Slot&>(find(slot.left, slot.right)) = slot;
  }
}

void BpeMerges::append_ids(std::string_view word, std::vector<int32_t>& ids) const {
  const size_t first = ids.size();
  for (const char byte : word) {
    const int32_t id = bytes_[static_cast<uint8_t>(byte)];
    if (id >= 0) ids.push_back(id);
  }
  merge(ids, first);
}

void BpeMerges::merge(std::vector<int32_t>& ids, size_t first) const {
  constexpr size_t kFew = 32;
  if (ids.size() - first <= kFew)
    merge_few(ids, first);
  else
    merge_many(ids, first);
}

// Searches all pairs for the best one, which is fastest for short words, the most frequent ones.
void BpeMerges::merge_few(std::vector<int32_t>& ids, size_t first) const {
  std::array<const Slot*, 32> pairs;
  size_t count = ids.size() - first;
  int32_t* const word = ids.data() + first;
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = &find(word[i], word[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i]->rank < pairs[best]->rank) best = i;
    }
    if (pairs[best]->rank == kNoRank) break;
    word[best] = pairs[best]->result;
    std::copy(word + best + 2, word + count, word + best + 1);
    --count;
    for (size_t i = best + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
    if (best > 0) pairs[best - 1] = &find(word[best - 1], word[best]);
    if (best + 1 < count) pairs[best] = &find(word[best], word[best + 1]);
  }
  ids.resize(first + count);
}

// A queue of pairs over a linked list: n log n for words of any length. A pair that no longer
// exists when its turn comes is recognised by its rank.
void BpeMerges::merge_many(std::vector<int32_t>& ids, size_t first) const {
  constexpr size_t kNone = SIZE_MAX;
  struct Symbol {
    int32_t id;
    size_t before, after;
  };
  std::vector<Symbol> symbols;
  for (size_t i = 0; i < ids.size() - first; ++i)
    symbols.push_back({ids[first + i], i == 0 ? kNone : i - 1, i + 1});
  symbols.back().after = kNone;

  using Entry = std::pair<uint32_t, size_t>;  // rank, position of the left symbol
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto offer = [&](size_t left) {
    if (left == kNone || symbols[left].after == kNone) return;
    const uint32_t rank = find(symbols[left].id, symbols[symbols[left].after].id).rank;
    if (rank != kNoRank) queue.emplace(rank, left);
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) offer(i);
  while (!queue.empty()) {
    const auto [rank, left] = queue.top();
    queue.pop();
    const size_t right = symbols[left].after;
    if (symbols[left].id < 0 || right == kNone) continue;
    const Slot& slot = find(symbols[left].id, symbols[right].id);
    if (slot.rank != rank) continue;
    symbols[left].id = slot.result;
    symbols[left].after = symbols[right].after;
    symbols[right].id = -1;
    if (symbols[left].after != kNone) symbols[symbols[left].after].before = left;
    offer(symbols[left].before);
    offer(left);
  }
  ids.resize(first);
  for (size_t i = 0; i != kNone; i = symbols[i].after) ids.push_back(symbols[i].id);
}

}  // namespace lockstep::inline v0::tokenizers
