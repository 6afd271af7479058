#include "lockstep/recover/resumption.h"

#include <algorithm>
#include <map>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/recover/holders.h"

namespace lockstep::inline v0::recover {

int most_local(std::span<const RankProgress> ranks) {
  int most = 1;
  for (const RankProgress& rank : ranks) most = std::max(most, rank.local_size);
  return most;
}

namespace {

std::vector<Resumption::Gone> gone_from(std::span<const RankProgress> ranks) {
  int size = 0;
  std::map<int, int> now;  // by former numbers
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].former < 0) continue;
    size = ranks[r].former_size;
    now[ranks[r].former] = static_cast<int>(r);
  }
  std::vector<Resumption::Gone> gone;
  // Where no rank leaves, a rank without a former number is one that takes another's place.
  if (static_cast<size_t>(size) <= ranks.size()) return gone;
  for (int former = 0; former < size; ++former) {
    if (now.contains(former)) continue;
    gone.push_back({.former = former});
    for (const int holder : replica_holders(former, size, most_local(ranks))) {
      const auto found = now.find(holder);
      if (found == now.end() || !ranks[static_cast<size_t>(found->second)].has_copies) continue;
      gone.back().holder = found->second;
      break;
    }
  }
  return gone;
}

}  // namespace

Resumption decide_resumption(std::span<const RankProgress> ranks) {
  const auto size = static_cast<int>(ranks.size());
  const int local = most_local(ranks);
  const auto at = [&](int rank) -> const RankProgress& { return ranks[static_cast<size_t>(rank)]; };
  Resumption plan;
  for (int r = 0; r < size; ++r) {
    if (!at(r).whole) continue;
    if (plan.source < 0) plan.source = r;
    plan.step = std::max(plan.step, at(r).step);
  }
  if (plan.source < 0) {
    plan.anew = true;
    return plan;
  }
  for (int r = 0; r < size; ++r) {
    if (!at(r).whole || at(r).step == plan.step) continue;
    if (at(r).step + 1 != plan.step || !at(r).agreeing) {
      throw Mismatch("recovery: rank " + std::to_string(r) + " has done " +
                     std::to_string(at(r).step) + " steps, others " + std::to_string(plan.step) +
                     "; all ranks must call update() equally often");
    }
    plan.behind.push_back(r);
  }
  for (int r = 0; r < size; ++r) {
    if (at(r).whole) continue;
    if (at(r).has_own) {
      plan.newcomers.push_back({r, r});
      continue;
    }
    const std::vector<int> holders = replica_holders(r, size, local);
    const auto holder = std::find_if(holders.begin(), holders.end(),
                                     [&](int k) { return at(k).whole && at(k).has_copies; });
    if (holder == holders.end()) {
      throw PeerLost("recovery: what rank " + std::to_string(r) + " had alone went with rank " +
                         joined(holders, " and ") +
                         ", which kept a copy of it; start again from the last checkpoint",
                     r);
    }
    plan.newcomers.push_back({r, *holder});
  }
  plan.gone = gone_from(ranks);
  return plan;
}

}  // namespace lockstep::inline v0::recover
