// GroupMaker: how a communicator makes engines for further groups of its job's ranks, and how their
// ranks agree without it. Not a public header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines.h"
#include "lockstep/comm/job_progress.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep {

// One per job and rank, shared by all communicators that come from one init(). Keeps alive what
// they need to make more: the store's connection, and the store's server where this rank has it.
class GroupMaker {
 public:
  virtual ~GroupMaker() = default;

  // Collective over the members of the new group, given by their ranks in the job; `topology` is
  // this rank's place in it. `name` is equal on all members, and no other group of the job ever has
  // it. Throws Timeout, PeerLost, StoreError.
  virtual Engines make(const std::string& name, const Topology& topology,
                       const std::vector<int>& members, Deadline deadline) = 0;

  // Called once no member needs what was left for it any more, be the group made or given up.
  virtual void settle(const std::string& name) noexcept = 0;

  // What all ranks of the job can read and write, whatever became of their communicators.
  virtual Store& store() = 0;
};

// Where a communicator comes from: how it makes groups, and its own name among the job's groups,
// below which theirs are. The counters are equal on all its ranks because groups are made
// collectively.
struct GroupOrigin {
  std::shared_ptr<GroupMaker> maker;
  std::string name;
  std::vector<int> members;  // of this communicator, by their ranks in the job
  std::shared_ptr<JobProgress> progress = nullptr;  // of this rank; null: none yet
  uint64_t groups = 0;                              // made so far by split, subgroup and duplicate
  uint64_t shrinks = 0;                             // calls of shrink so far
  std::vector<std::string> titles = {};             // of the same (Communicator::name_ranks())
};

// Ranks of the communicator by their ranks in the job.
std::vector<int> in_job(const GroupOrigin& origin, const std::vector<int>& ranks);

// Of a group called `name` of `members`, ranks of the communicator that `parent` is of.
std::shared_ptr<GroupOrigin> origin_of_group(const GroupOrigin& parent, std::string name,
                                             const std::vector<int>& members);

// For ranks that are processes: engines like the job's own, `job`, which meet in `store`. `keep`
// lives as long as the maker. `store` may be null for a rank alone.
std::shared_ptr<GroupMaker> make_process_groups(EngineRequest job, std::shared_ptr<Store> store,
                                                std::shared_ptr<void> keep);

// For ranks that are threads of this process, or one rank alone. All ranks' communicators share the
// result.
std::shared_ptr<GroupMaker> make_local_groups();

// For one rank alone on a device that is not the CPU.
std::shared_ptr<GroupMaker> make_lone_groups(c10::Device device);

}  // namespace lockstep
