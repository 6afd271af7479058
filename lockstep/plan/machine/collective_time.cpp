#include <algorithm>
#include <cmath>

#include "lockstep/plan/machine/machine.h"

namespace lockstep::inline v0::plan {
namespace {

// Among `ranks` over one link: how many steps, and how many bytes a rank sends, as multiples of the whole.
struct Steps {
  double steps = 0, volume = 0;
};
Steps ring(Collective collective, double ranks) {
  const double share = (ranks - 1) / ranks;
  switch (collective) {
    case Collective::kAllReduce:
      return {2 * (ranks - 1), 2 * share};
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return {ranks - 1, share};
    case Collective::kAllToAll:
      // A rank's bytes are for all ranks alike, its own part among them.
      return {1, share};
    case Collective::kBroadcast:
      return {std::ceil(std::log2(ranks)) + ranks - 1, 2 * share};
    case Collective::kSend:
      return {1, 1};
  }
  return {};
}
Steps tree(Collective collective, double ranks) {
  const double depth = std::ceil(std::log2(ranks));
  switch (collective) {
    case Collective::kAllReduce:
      return {2 * depth, 2};
    case Collective::kBroadcast:
      return {depth, depth};
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      // Doubling: as many bytes as the ring's, in fewer and longer messages.
      return {depth, (ranks - 1) / ranks};
    default:
      return ring(collective, ranks);
  }
}

double over(const Steps& steps, double bytes, double latency, double bandwidth) {
  return steps.steps * latency + steps.volume * bytes / bandwidth;
}

// The cheaper of a ring and a tree.
double flat(Collective collective, double bytes, double ranks, double latency, double bandwidth) {
  if (ranks <= 1 && collective != Collective::kSend) return 0;
  return std::min(over(ring(collective, ranks), bytes, latency, bandwidth),
                  over(tree(collective, ranks), bytes, latency, bandwidth));
}

}  // namespace

double collective_time(Collective collective, double bytes, const GroupPlace& place,
                       const Machine& machine, double share) {
  const Link& link = machine.inside_of(collective);
  const double inside = link.bandwidth * share;
  const double between = machine.between.bandwidth * share;
  const double here = std::min(place.per_host, place.ranks);
  const double hosts = std::ceil(place.ranks / std::max(1.0, here));
  if (collective == Collective::kSend)
    return place.per_host > 1 || place.ranks == 1 ? link.latency + bytes / inside
                                                  : machine.between.latency + bytes / between;
  if (place.ranks <= 1) return 0;
  if (hosts <= 1) return flat(collective, bytes, here, link.latency, inside);
  if (here <= 1) return flat(collective, bytes, hosts, machine.between.latency, between);
  if (collective == Collective::kAllToAll) {
    // What stays on the host goes beside what leaves it.
    const double leaves = (hosts - 1) / hosts, stays = (here - 1) / place.ranks;
    return machine.between.latency + std::max(bytes * leaves / between, bytes * stays / inside);
  }
  // A ring through all ranks, as many of them as a host has links side by side: each host's bytes leave it over
  // all of its ranks' links, and pass through the host at the speed of the inside.
  const double wide = std::min(inside, between * here);
  const Steps around = ring(collective, place.ranks);
  const double entries = around.steps * hosts / place.ranks;
  const double one = entries * machine.between.latency + (around.steps - entries) * link.latency +
                     around.volume * bytes / wide;
  // Inside hosts first, then between them, each rank with the part that it has, then inside again.
  const auto on_host = [&](Collective part) {
    const Link& own = machine.inside_of(part);
    return flat(part, bytes, here, own.latency, own.bandwidth * share);
  };
  double two = 0;
  switch (collective) {
    case Collective::kAllReduce:
      two = on_host(Collective::kReduceScatter) +
            flat(Collective::kAllReduce, bytes / here, hosts, machine.between.latency, between) +
            on_host(Collective::kAllGather);
      break;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      two = on_host(collective) +
            flat(collective, bytes / here, hosts, machine.between.latency, between);
      break;
    default:
      two = flat(collective, bytes, hosts, machine.between.latency, between) + on_host(collective);
  }
  return std::min(one, two);
}

}  // namespace lockstep::inline v0::plan
