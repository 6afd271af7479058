#include "lockstep/recover/rollback.h"

#include <functional>
#include <set>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/recover/holders.h"

namespace lockstep::inline v0::recover {
namespace {

bool has(const std::array<int64_t, 2>& steps, int64_t step) {
  return step >= 0 && (steps[0] == step || steps[1] == step);
}

}  // namespace

Rollback decide_rollback(std::span<const KeptStates> ranks, int local) {
  const auto size = static_cast<int>(ranks.size());
  const auto at = [&](int rank) -> const KeptStates& { return ranks[static_cast<size_t>(rank)]; };
  // The rank with the state of rank r at a step: itself, its replica holder, or none (-1).
  const auto holder = [&](int r, int64_t step) {
    if (has(at(r).own, step)) return r;
    const int holder = replica_holder(r, size, local);
    return holder != r && has(at(holder).copy, step) ? holder : -1;
  };
  std::set<int64_t, std::greater<>> steps;
  bool begun = false;
  for (const KeptStates& rank : ranks) {
    begun = begun || rank.begun;
    for (const int64_t step : rank.own)
      if (step >= 0) steps.insert(step);
  }
  int lost = 0;
  for (const int64_t step : steps) {
    Rollback plan{.anew = false, .step = step, .newcomers = {}};
    bool all = true;
    for (int r = 0; r < size && all; ++r) {
      const int from = holder(r, step);
      all = from >= 0;
      if (!all) lost = r;
      if (all && from != r) plan.newcomers.push_back(r);
    }
    if (all) return plan;
  }
  if (!begun) return {.anew = true, .step = 0, .newcomers = {}};
  throw PeerLost("recovery: the state of rank " + std::to_string(lost) + " went with rank " +
                     std::to_string(replica_holder(lost, size, local)) +
                     ", which kept a copy of it; start again from the last checkpoint",
                 lost);
}

}  // namespace lockstep::inline v0::recover
