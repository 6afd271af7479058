#include <algorithm>
#include <exception>
#include <sstream>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/groups/pauses.h"
#include "lockstep/comm/internal/communicator_impl.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/comm/internal/group_plan.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep {
namespace {

constexpr const char* kMade = "made";  // the outcome of a successful shrink

std::vector<int> parse_ranks(const std::string& text) {
  std::istringstream words(text);
  std::vector<int> ranks;
  for (int r = 0; words >> r;) ranks.push_back(r);
  return ranks;
}

// One call of shrink() on one rank, over keys of its own: here/R, members, made/R, outcome.
class Shrinking {
 public:
  Shrinking(Store& store, const Communicator::Impl& comm)
      : store_(store), comm_(comm), topology_(comm.topology()) {}

  // Ends the attempt unless that has happened. Returns true if the group had been made by then.
  bool closed_as_made() {
    return store_.compare_set(
               "outcome", "",
               "its rank " + std::to_string(topology_.rank) + " has called shrink again") == kMade;
  }

  // Returns the members, in ascending order and equal on all of them.
  std::vector<int> agree_on_members(Deadline deadline) {
    store_.set(here(topology_.rank), std::to_string(topology_.node_rank));
    std::vector<bool> announced(static_cast<size_t>(topology_.size), false);
    announced[topology_.rank] = true;
    Pauses pauses;
    while (true) {
      if (const auto agreed = store_.try_get("members")) return parse_ranks(*agreed);
      bool waiting = false;
      std::vector<int> survivors;
      for (int r = 0; r < topology_.size; ++r) {
        if (!announced[r]) announced[r] = store_.try_get(here(r)).has_value();
        const bool lost = comm_.lost(r);
        if (announced[r] && !lost) survivors.push_back(r);
        if (!announced[r] && !lost) waiting = true;
      }
      if (!waiting || deadline.expired())
        return parse_ranks(store_.compare_set("members", "", joined(survivors, " ")));
      pauses.pause();
    }
  }

  // The host of a member, which has announced itself.
  int node_of(int rank) { return std::stoi(store_.try_get(here(rank)).value_or("0")); }

  // Announces that this rank's engine is ready. Returns "made", or why the group was given up; the
  // result is equal on all members.
  std::string agree_on_outcome(const std::vector<int>& members, Deadline deadline) {
    store_.set(made(topology_.rank), "1");
    Pauses pauses;
    while (true) {
      if (const auto outcome = store_.try_get("outcome")) return *outcome;
      std::vector<int> missing;
      for (const int r : members) {
        if (!store_.try_get(made(r))) missing.push_back(r);
      }
      if (missing.empty()) return store_.compare_set("outcome", "", kMade);
      for (const int r : missing) {
        if (comm_.lost(r))
          return give_up("rank " + std::to_string(r) + " died while the group was being made");
      }
      if (deadline.expired())
        return give_up("rank " + joined(missing, " ") + " had no engine at the deadline");
      pauses.pause();
    }
  }

  std::string give_up(const std::string& reason) {
    return store_.compare_set("outcome", "", reason);
  }

 private:
  static std::string here(int rank) { return "here/" + std::to_string(rank); }
  static std::string made(int rank) { return "made/" + std::to_string(rank); }

  Store& store_;
  const Communicator::Impl& comm_;
  Topology topology_;
};

}  // namespace

Communicator Communicator::shrink(Deadline deadline) {
  const std::shared_ptr<GroupOrigin>& origin = impl_->options().origin;
  if (!origin) {
    throw InvalidArgument(
        "shrink: this communicator was made without a way to make groups; use one from init() or "
        "run_threads()");
  }
  abort("rank " + std::to_string(rank()) + " left it for shrink()");
  const Deadline announce = Deadline::after(deadline.remaining() / 2);
  const uint64_t attempt = ++origin->shrinks;
  const auto name_of = [&](uint64_t n) { return origin->name + "/shrink" + std::to_string(n); };
  const std::string name = name_of(attempt);
  GroupMaker& maker = *origin->maker;
  // A prefix apart from the engine's own keys, which lie below the name.
  const auto agreement = [&](uint64_t n) {
    return PrefixStore(name_of(n) + "/agree",
                       std::shared_ptr<Store>(origin->maker, &maker.store()));
  };
  try {
    // Attempts follow one another, because two concurrent ones could both make a group.
    for (uint64_t n = 1; n < attempt; ++n) {
      PrefixStore store = agreement(n);
      if (!Shrinking(store, *impl_).closed_as_made()) continue;
      throw PeerLost(
          "shrink: this communicator was shrunk before, and its group goes on; use what "
          "that call returned, or, if it threw on this rank, end this process",
          rank());
    }
    PrefixStore store = agreement(attempt);
    Shrinking shrinking(store, *impl_);
    const std::vector<int> members = shrinking.agree_on_members(announce);
    if (std::find(members.begin(), members.end(), rank()) == members.end()) {
      throw PeerLost("shrink: the group goes on as old ranks " + joined(members, " ") +
                         " without this one, rank " + std::to_string(rank()) +
                         ", which came too late or was taken for dead; end this process",
                     rank());
    }
    // Ranks outside the group do not take part in the numbering of nodes.
    std::vector<GroupWish> wishes(static_cast<size_t>(size()), {.color = -1});
    for (const int r : members) wishes[r] = {0, 0, shrinking.node_of(r)};
    const Topology topology = topology_of_group(wishes, members, rank());
    Engines engines;
    std::string outcome;
    try {
      engines = maker.make(name, topology, in_job(*origin, members), deadline);
      outcome = shrinking.agree_on_outcome(members, deadline);
    } catch (const StoreError&) {
      throw;
    } catch (const Error& error) {
      outcome = shrinking.give_up("rank " + std::to_string(rank()) + ": " + error.what());
    }
    maker.settle(name);
    if (outcome != kMade) {
      throw PeerLost("shrink: the members, old ranks " + joined(members, " ") +
                         ", could not make their group: " + outcome + "; call shrink again",
                     -1);
    }
    CommunicatorOptions options = impl_->options();
    options.origin = origin_of_group(*origin, name, members);
    options.reform = nullptr;
    return Communicator(std::move(engines.own), topology, std::move(options),
                        std::move(engines.host));
  } catch (const StoreError& error) {
    throw StoreError(
        std::string("shrink: the survivors cannot agree without the job's store: ") + error.what() +
        "; only a store that outlives the ranks allows it: the launcher's (lockstep run) or a file "
        "(init_method file://)");
  }
}

}  // namespace lockstep
