#include "lockstep/timeline/overlap.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lockstep::inline v0::timeline {
namespace {

// Apart from each other, in order.
using Intervals = std::vector<std::pair<int64_t, int64_t>>;

Intervals together(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end());
  Intervals result;
  for (const auto& [begin, end] : intervals) {
    if (begin >= end) continue;
    if (result.empty() || begin > result.back().second)
      result.emplace_back(begin, end);
    else
      result.back().second = std::max(result.back().second, end);
  }
  return result;
}

Intervals common(const Intervals& a, const Intervals& b) {
  Intervals result;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const int64_t begin = std::max(a[i].first, b[k].first);
    const int64_t end = std::min(a[i].second, b[k].second);
    if (begin < end) result.emplace_back(begin, end);
    (a[i].second < b[k].second ? i : k) += 1;
  }
  return result;
}

int64_t length(const Intervals& intervals) {
  int64_t sum = 0;
  for (const auto& [begin, end] : intervals) sum += end - begin;
  return sum;
}

// What a rank did.
struct RankTimes {
  struct Marked {
    Intervals steps, backward;
  };
  Marked host, device;
  Intervals collectives, waits, all;
};

RankOverlap overlap_of(int rank, const RankTimes& times) {
  // Where the device has them, both are its own: the host is ahead of it.
  const bool on_device = !times.device.backward.empty() && !times.device.steps.empty();
  const RankTimes::Marked& marked = on_device ? times.device : times.host;
  RankOverlap overlap{.rank = rank, .steps = static_cast<int64_t>(marked.steps.size())};
  Intervals window = together(marked.steps);
  if (window.empty()) {
    const Intervals all = together(times.all);
    if (!all.empty()) window.emplace_back(all.front().first, all.back().second);
  }
  const Intervals communication = common(together(times.collectives), window);
  const Intervals waits = common(communication, together(times.waits));
  const Intervals backward = common(communication, together(marked.backward));
  const auto within = [&](const std::pair<int64_t, int64_t>& call) {
    return !common({call}, window).empty();
  };
  overlap.time = length(window);
  overlap.collectives = std::count_if(times.collectives.begin(), times.collectives.end(), within);
  overlap.communication = length(communication);
  overlap.waited = length(waits);
  overlap.waited_in_backward = length(common(waits, backward));
  overlap.hidden = length(backward) - overlap.waited_in_backward;
  overlap.beside = overlap.communication - overlap.waited - overlap.hidden;
  return overlap;
}

}  // namespace

std::vector<RankOverlap> overlap_of(const std::vector<ReadEvent>& events) {
  std::map<int, RankTimes> ranks;
  for (const ReadEvent& event : events) {
    RankTimes& times = ranks[event.rank];
    const std::pair<int64_t, int64_t> when(event.begin_ns, event.end_ns);
    times.all.push_back(when);
    if (event.category == kCollective) times.collectives.push_back(when);
    if (event.category == kWait) times.waits.push_back(when);
    if (event.category != kMarked && event.category != kOnDevice) continue;
    RankTimes::Marked& marked = event.category == kMarked ? times.host : times.device;
    if (event.name == "step") marked.steps.push_back(when);
    if (event.name == "backward" || event.name == "forward and backward")
      marked.backward.push_back(when);
  }
  std::vector<RankOverlap> result;
  for (const auto& [rank, times] : ranks) result.push_back(overlap_of(rank, times));
  return result;
}

}  // namespace lockstep::inline v0::timeline
