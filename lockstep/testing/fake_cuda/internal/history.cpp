#include "lockstep/testing/fake_cuda/internal/history.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep::inline v0::testing::fake {

void AccessHistory::split(size_t at) {
  auto it = segments_.upper_bound(at);
  if (it == segments_.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Segment second = it->second;
  it->second.end = at;
  segments_.emplace_hint(std::next(it), at, std::move(second));
}

std::optional<Access> AccessHistory::add(ByteRange bytes, Access access, const VectorClock& clock) {
  if (bytes.begin >= bytes.end) return std::nullopt;
  split(bytes.begin);
  split(bytes.end);
  std::optional<Access> conflict;
  const auto look = [&](const Access& earlier) {
    if (!conflict && !clock.covers(earlier.stamp)) conflict = earlier;
  };
  const auto first = segments_.lower_bound(bytes.begin);
  const auto last = segments_.lower_bound(bytes.end);
  for (auto it = first; it != last; ++it) {
    if (it->second.written) look(*it->second.written);
    if (access.write) std::for_each(it->second.read.begin(), it->second.read.end(), look);
  }
  if (access.write) {
    segments_.erase(first, last);
    segments_.emplace(bytes.begin, Segment{bytes.end, std::move(access), {}});
    return conflict;
  }
  // What lies between the segments has been read before anyone wrote it.
  size_t at = bytes.begin;
  for (auto it = segments_.lower_bound(bytes.begin); at < bytes.end;) {
    if (it == segments_.end() || it->first > at) {
      const size_t end = it == segments_.end() ? bytes.end : std::min(it->first, bytes.end);
      it = segments_.emplace_hint(it, at, Segment{end, std::nullopt, {}});
    }
    std::vector<Access>& read = it->second.read;
    const auto same = std::find_if(read.begin(), read.end(), [&](const Access& earlier) {
      return earlier.stamp.stream == access.stamp.stream;
    });
    if (same == read.end())
      read.push_back(access);
    else
      *same = access;
    at = it->second.end;
    ++it;
  }
  return conflict;
}

std::vector<Access> AccessHistory::beyond(const VectorClock& clock) const {
  std::map<int, Access> latest;
  const auto look = [&](const Access& access) {
    if (clock.covers(access.stamp)) return;
    const auto [it, fresh] = latest.emplace(access.stamp.stream, access);
    if (!fresh && it->second.stamp.tick < access.stamp.tick) it->second = access;
  };
  for (const auto& [begin, segment] : segments_) {
    if (segment.written) look(*segment.written);
    std::for_each(segment.read.begin(), segment.read.end(), look);
  }
  std::vector<Access> result;
  for (auto& [stream, access] : latest) result.push_back(std::move(access));
  return result;
}

}  // namespace lockstep::inline v0::testing::fake
