#include <algorithm>
#include <exception>
#include <sstream>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/groups/attempt.h"
#include "lockstep/comm/groups/pauses.h"
#include "lockstep/comm/internal/communicator_impl.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/comm/internal/group_plan.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0 {
namespace {

std::vector<int> parse_ranks(const std::string& text) {
  std::istringstream words(text);
  std::vector<int> ranks;
  for (int r = 0; words >> r;) ranks.push_back(r);
  return ranks;
}

// The members of the attempt to shrink `comm`, in ascending order and equal on all of them: the
// ranks that have announced themselves. `store` is the attempt's.
std::vector<int> agree_on_members(const Communicator::Impl& comm, Attempt& attempt, Store& store,
                                  Deadline deadline) {
  const Topology& topology = comm.topology();
  attempt.announce(std::to_string(topology.node_rank));
  std::vector<bool> announced(static_cast<size_t>(topology.size), false);
  announced[topology.rank] = true;
  Pauses pauses;
  while (true) {
    if (const auto agreed = store.try_get("members")) return parse_ranks(*agreed);
    bool waiting = false;
    std::vector<int> survivors;
    for (int r = 0; r < topology.size; ++r) {
      if (!announced[r]) announced[r] = attempt.word_of(r).has_value();
      const bool lost = comm.lost(r);
      if (announced[r] && !lost) survivors.push_back(r);
      if (!announced[r] && !lost) waiting = true;
    }
    if (!waiting || deadline.expired())
      return parse_ranks(store.compare_set("members", "", joined(survivors, " ")));
    pauses.pause();
  }
}

}  // namespace

Communicator Communicator::shrink(Deadline deadline) {
  const std::shared_ptr<GroupOrigin>& origin = impl_->options().origin;
  if (!origin) {
    throw InvalidArgument(
        "shrink: this communicator was made without a way to make groups; use one from init() or "
        "run_threads()");
  }
  impl_->check_caller("shrink");
  impl_->abort("rank " + std::to_string(rank()) + " left it for shrink()", Impl::Reach::kGroups);
  const Deadline announce = Deadline::after(deadline.remaining() / 2);
  const uint64_t attempt = ++origin->shrinks;
  const auto name_of = [&](uint64_t n) { return origin->name + "/shrink" + std::to_string(n); };
  const std::string name = name_of(attempt);
  GroupMaker& maker = *origin->maker;
  // A prefix apart from the engine's own keys, which lie below the name.
  const auto agreement = [&](uint64_t n) {
    return std::make_shared<PrefixStore>(name_of(n) + "/agree",
                                         std::shared_ptr<Store>(origin->maker, &maker.store()));
  };
  try {
    // Attempts follow one another, because two concurrent ones could both make a group.
    for (uint64_t n = 1; n < attempt; ++n) {
      const std::string end =
          Attempt(agreement(n), rank())
              .give_up("its rank " + std::to_string(rank()) + " has called shrink again");
      if (end != Attempt::kMade) continue;
      throw PeerLost(
          "shrink: this communicator was shrunk before, and its group goes on; use what "
          "that call returned, or, if it threw on this rank, end this process",
          rank());
    }
    const std::shared_ptr<Store> store = agreement(attempt);
    Attempt shrinking(store, rank());
    const std::vector<int> members = agree_on_members(*impl_, shrinking, *store, announce);
    if (std::find(members.begin(), members.end(), rank()) == members.end()) {
      throw PeerLost("shrink: the group goes on as old ranks " + joined(members, " ") +
                         " without this one, rank " + std::to_string(rank()) +
                         ", which came too late or was taken for dead; end this process",
                     rank());
    }
    // Ranks outside the group do not take part in the numbering of nodes.
    std::vector<GroupWish> wishes(static_cast<size_t>(size()), {.color = -1});
    for (const int r : members) wishes[r] = {0, 0, std::stoi(shrinking.word_of(r).value_or("0"))};
    const Topology topology = topology_of_group(wishes, members, rank());
    Engines engines;
    std::string outcome;
    try {
      engines = maker.make(name, topology, in_job(*origin, members), deadline);
      outcome = shrinking.agree(
          members, deadline,
          [this](const std::vector<int>& missing) -> std::string {
            for (const int r : missing) {
              if (impl_->lost(r))
                return "rank " + std::to_string(r) + " died while the group was being made";
            }
            return "";
          },
          [](const std::string& missing) { return missing + " had no engine at the deadline"; });
    } catch (const StoreError&) {
      throw;
    } catch (const Error& error) {
      outcome = shrinking.give_up("rank " + std::to_string(rank()) + ": " + error.what());
    }
    maker.settle(name);
    if (outcome != Attempt::kMade) {
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

}  // namespace lockstep::inline v0
