#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>
#include <utility>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/internal/communicator_impl.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/comm/internal/group_plan.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/exception_text.h"

namespace lockstep::inline v0 {
namespace {

enum GroupKind : int { kSplit, kSubgroup, kDuplicate };
constexpr const char* kKindNames[] = {"split", "subgroup", "duplicate"};

// After a failure on one rank, all learn of it in a collective of this communicator. A rank whose
// engine keeps waiting arrives there only at its own deadline.
constexpr auto kOutcomeGrace = std::chrono::seconds(10);

// The outcome on one rank: whether its engine was made and, if not, which rank failed and why.
struct MadeWord {
  static constexpr size_t kWords = 32;
  enum Made : int64_t { kMade, kFailed, kLeft };  // kLeft: because of another rank

  int64_t made = kMade;
  char why[(kWords - 1) * sizeof(int64_t)] = {};  // NUL-terminated

  explicit MadeWord(const std::exception_ptr& failure) {
    if (!failure) return;
    made = kFailed;
    try {
      std::rethrow_exception(failure);
    } catch (const Timeout&) {
      made = kLeft;
    } catch (const PeerLost&) {
      made = kLeft;
    } catch (...) {
    }
    const std::string text = exception_text(failure);
    text.substr(0, text.find('\n')).copy(why, sizeof why - 1);
  }
  explicit MadeWord(const int64_t* words) {
    std::memcpy(this, words, sizeof *this);
    why[sizeof why - 1] = '\0';
  }
  std::vector<int64_t> words() const {
    std::vector<int64_t> all(kWords);
    std::memcpy(all.data(), this, sizeof *this);
    return all;
  }
};
static_assert(sizeof(MadeWord) == MadeWord::kWords * sizeof(int64_t));

std::vector<int64_t> exchange(Communicator& comm, const std::vector<int64_t>& mine,
                              Deadline deadline, Communicator::Site site) {
  const at::Tensor input = at::tensor(mine, at::kLong);
  const at::Tensor all =
      at::empty({static_cast<int64_t>(mine.size()) * comm.size()}, at::TensorOptions(at::kLong));
  comm.iall_gather(all, input, site).wait(deadline);
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + all.numel()};
}

}  // namespace

std::optional<Communicator> Communicator::make_group(int kind, uint64_t signature, int color,
                                                     int key, Site site) {
  const std::shared_ptr<GroupOrigin>& origin = impl_->options().origin;
  if (!origin) {
    throw InvalidArgument(std::string(kKindNames[kind]) +
                          ": this communicator was made without a way to make groups; use one from "
                          "init() or run_threads()");
  }
  impl_->check_caller(kKindNames[kind]);
  // The requests and hosts of all ranks, in one exchange.
  constexpr size_t kFields = 5;
  const std::vector<int64_t> all =
      exchange(*this, {kind, static_cast<int64_t>(signature), color, key, node_rank()},
               Deadline::after(timeout()), site);
  std::vector<GroupWish> wishes;
  for (int r = 0; r < size(); ++r) {
    const int64_t* fields = all.data() + kFields * static_cast<size_t>(r);
    if (fields[0] != kind || fields[1] != static_cast<int64_t>(signature)) {
      throw InvalidArgument(
          "ranks ask for different groups: rank " + std::to_string(rank()) + " calls " +
          kKindNames[kind] + ", rank " + std::to_string(r) + " " +
          (fields[0] == kind
               ? std::string("the same with other arguments")
               : "calls " + std::string(kKindNames[std::clamp<int64_t>(fields[0], 0, 2)])) +
          "; all ranks must make the same groups in the same order");
    }
    wishes.push_back(
        {static_cast<int>(fields[2]), static_cast<int>(fields[3]), static_cast<int>(fields[4])});
  }
  const std::vector<int> members = members_of(wishes, color);
  const std::string name =
      origin->name + "/" + std::to_string(++origin->groups) +
      (members.empty() ? ""
                       : "." + std::to_string(*std::min_element(members.begin(), members.end())));
  Topology topology;
  Engines engines;
  std::exception_ptr failure;
  const Deadline deadline = Deadline::after(timeout());
  if (!members.empty()) {
    topology = topology_of_group(wishes, members, rank());
    try {
      engines = origin->maker->make(name, topology, in_job(*origin, members), deadline);
    } catch (...) {  // any exception: the others must not wait for this rank
      failure = std::current_exception();
    }
  }
  // All members or none make the group: one with a failed member would only hang later.
  const std::vector<int64_t> words =
      exchange(*this, MadeWord(failure).words(), Deadline::after(timeout() + kOutcomeGrace), site);
  origin->maker->settle(name);
  // Names the first rank whose own error it is, otherwise the first one.
  std::optional<std::pair<int, MadeWord>> failed;
  for (int r = 0; r < size(); ++r) {
    const MadeWord word(words.data() + static_cast<size_t>(r) * MadeWord::kWords);
    if (word.made == MadeWord::kMade) continue;
    if (!failed || (failed->second.made == MadeWord::kLeft && word.made == MadeWord::kFailed))
      failed.emplace(r, word);
  }
  const bool anothers = failed && failed->second.made == MadeWord::kFailed;
  if (failure && (!anothers || MadeWord(failure).made == MadeWord::kFailed))
    std::rethrow_exception(failure);
  if (failed) {
    throw PeerLost(std::string(kKindNames[kind]) + ": rank " + std::to_string(failed->first) +
                       " could not join its new group: " + failed->second.why +
                       "; no group was made",
                   failed->first);
  }
  if (members.empty()) return std::nullopt;
  CommunicatorOptions options = impl_->options();
  options.origin = origin_of_group(*origin, name, members);
  options.reform = nullptr;
  Communicator group(std::move(engines.own), topology, std::move(options), std::move(engines.host));
  impl_->add_derived(group.impl_,
                     kind == kDuplicate ? Impl::Derived::kDuplicate : Impl::Derived::kGroup);
  return group;
}

Communicator Communicator::reform(Deadline deadline) {
  const std::function<Communicator(Deadline)>& reform = impl_->options().reform;
  if (!reform) {
    throw InvalidArgument(
        impl_->options().generation > 0
            ? "reform: this is a group of the job's ranks; call it on the communicator that init() "
              "returned, and make the group again"
            : "reform: no launcher starts ranks of this job anew; lockstep run --on-failure replace "
              "does");
  }
  impl_->abort("rank " + std::to_string(rank()) + " left it for reform()", Impl::Reach::kGroups);
  return reform(deadline);
}

int64_t Communicator::generation() const {
  return impl_->options().generation;
}

void Communicator::name_ranks(std::vector<std::string> titles) {
  if (titles.size() != static_cast<size_t>(size()))
    throw InvalidArgument("name_ranks: " + std::to_string(titles.size()) + " titles for " +
                          std::to_string(size()) + " ranks; give one for each");
  impl_->name_ranks(std::move(titles));
}

std::optional<Communicator> Communicator::split(int color, int key, Site site) {
  return make_group(kSplit, 0, std::max(color, -1), key, site);
}

std::optional<Communicator> Communicator::subgroup(const std::vector<int>& ranks, Site site) {
  uint64_t signature = ranks.size();
  int key = 0;
  bool member = false;
  std::set<int> seen;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int r = ranks[i];
    if (r < 0 || r >= size()) {
      throw InvalidArgument("subgroup: " + std::to_string(r) +
                            " is not a rank of this group (0 to " + std::to_string(size() - 1) +
                            ")");
    }
    if (!seen.insert(r).second)
      throw InvalidArgument("subgroup: rank " + std::to_string(r) + " is listed twice");
    signature = (signature ^ static_cast<uint64_t>(r + 1)) * 0x9e3779b97f4a7c15ULL;
    if (r != rank()) continue;
    member = true;
    key = static_cast<int>(i);
  }
  if (ranks.empty()) throw InvalidArgument("subgroup: the list of ranks is empty");
  return make_group(kSubgroup, signature, member ? 0 : -1, key, site);
}

Communicator Communicator::duplicate(Site site) {
  return *make_group(kDuplicate, 0, 0, rank(), site);
}

}  // namespace lockstep::inline v0
