// AddressRanges: which addresses of a device are free. Not a public header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>

namespace lockstep::inline v0::testing::fake {

// Handed out in turns, so that addresses come back late. One thread at a time.
class AddressRanges {
 public:
  AddressRanges(size_t begin, size_t bytes) : free_{{begin, bytes}} {}

  std::optional<size_t> take(size_t bytes) {
    const auto fits = [&](const auto& piece) { return piece.second >= bytes; };
    auto it = std::find_if(free_.lower_bound(next_), free_.end(), fits);
    if (it == free_.end()) it = std::find_if(free_.begin(), free_.end(), fits);
    if (it == free_.end()) return std::nullopt;
    const size_t begin = it->first;
    const size_t rest = it->second - bytes;
    free_.erase(it);
    if (rest > 0) free_[begin + bytes] = rest;
    next_ = begin + bytes;
    return begin;
  }

  void give(size_t begin, size_t bytes) {
    // Joined with what is free beside it.
    auto after = free_.lower_bound(begin);
    if (after != free_.end() && after->first == begin + bytes) {
      bytes += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == begin) {
        begin = before->first;
        bytes += before->second;
        free_.erase(before);
      }
    }
    free_[begin] = bytes;
  }

 private:
  std::map<size_t, size_t> free_;  // bytes by their begin
  size_t next_ = 0;                // where to look first
};

}  // namespace lockstep::inline v0::testing::fake
