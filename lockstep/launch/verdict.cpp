#include "lockstep/launch/verdict.h"

#include <signal.h>

#include <algorithm>
#include <iterator>

namespace lockstep::inline v0::launch {
namespace {

const RankSight* find(std::span<const RankSight> sights, int rank) {
  const auto it =
      std::find_if(sights.begin(), sights.end(), [&](const auto& s) { return s.rank == rank; });
  return it == sights.end() ? nullptr : &*it;
}

template <typename Test>
std::vector<RankSight> those(std::span<const RankSight> sights, const Test& test) {
  std::vector<RankSight> found;
  std::copy_if(sights.begin(), sights.end(), std::back_inserter(found), test);
  std::sort(found.begin(), found.end(),
            [](const RankSight& a, const RankSight& b) { return a.rank < b.rank; });
  return found;
}

// The ranks at the end of the chain of waits that starts with the wait for `late`.
std::vector<RankSight> end_of_chain(std::span<const RankSight> sights, int late) {
  for (size_t steps = 0; steps <= sights.size(); ++steps) {
    const RankSight* sight = find(sights, late);
    if (sight == nullptr) return {};
    if (!sight->gave_up) return {*sight};
    late = sight->late;
  }
  return {};  // every rank waits for the next one
}

}  // namespace

bool ended_by_itself(const ExitStatus& status, bool killing, bool handles_term) {
  if (status.signal == 0) return !handles_term;
  return status.signal != SIGTERM && !(status.signal == SIGKILL && killing);
}

void judge(WorkerFailure& failure, std::span<const RankSight> sights) {
  failure.causes = those(sights, [&](const RankSight& sight) {
    return !sight.stopped_by.empty() && sight.rank != failure.rank;
  });
  if (!failure.gave_up) return;
  failure.waited.clear();
  for (const RankSight& sight : those(sights, [](const RankSight& s) { return s.gave_up; }))
    failure.waited.push_back(sight.rank);
  // Its agent's observations are lost.
  if (failure.waited.empty()) failure.waited.push_back(failure.rank);
  const std::vector<RankSight> awaited = end_of_chain(sights, failure.late);
  if (failure.causes.empty() && !awaited.empty() && !awaited[0].end.empty())
    failure.causes = awaited;
  if (failure.causes.empty()) {
    failure.causes =
        those(sights, [](const RankSight& sight) { return sight.ended_badly && !sight.gave_up; });
  }
  if (failure.causes.empty()) failure.causes = awaited;
}

}  // namespace lockstep::inline v0::launch
