// GroupMaker: makes engines for further groups of a communicator's job, whose ranks agree without
// using the communicator. Not a public header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/internal/engines.h"
#include "lockstep/comm/internal/job_progress.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

// One object per job and rank, shared by all communicators that come from one init(). It keeps
// alive what they need to make more groups: the store's connection, and the store's server where
// this rank runs it.
class GroupMaker {
 public:
  virtual ~GroupMaker() = default;

  // Makes the engines of a new group. `members`: its ranks in the job; `topology`: this rank's
  // place in it; `name`: equal on all members and used by no other group of the job.
  // Collective: all members of the new group.
  // Throws: Timeout, PeerLost, StoreError.
  virtual Engines make(const std::string& name, const Topology& topology,
                       const std::vector<int>& members, Deadline deadline) = 0;

  // Called once no member needs the keys of that group in the store any more, whether it was made
  // or given up.
  virtual void settle(const std::string& name) noexcept = 0;

  // A store that all ranks of the job can use, whatever became of their communicators.
  virtual Store& store() = 0;
};

// The origin of a communicator: how it makes groups, and its own name among the job's groups, which
// prefixes theirs. The counters are equal on all its ranks because groups are made collectively.
struct GroupOrigin {
  std::shared_ptr<GroupMaker> maker;
  std::string name;
  std::vector<int> members;  // of this communicator, by their ranks in the job
  std::shared_ptr<JobProgress> progress = nullptr;  // of this rank; null: none yet
  uint64_t groups = 0;                              // made so far by split, subgroup and duplicate
  uint64_t shrinks = 0;                             // calls of shrink so far
  std::vector<std::string> titles = {};  // titles of the members (Communicator::name_ranks())
};

// Converts ranks of the communicator to ranks in the job.
std::vector<int> in_job(const GroupOrigin& origin, const std::vector<int>& ranks);

// The origin of a group called `name`. `members` are ranks of the communicator whose origin is
// `parent`.
std::shared_ptr<GroupOrigin> origin_of_group(const GroupOrigin& parent, std::string name,
                                             const std::vector<int>& members);

// For ranks that are processes: makes engines like the job's own, `job`, which meet in `store`.
// `keep` lives as long as the maker. `store` may be null for a rank alone.
std::shared_ptr<GroupMaker> make_process_groups(EngineRequest job, std::shared_ptr<Store> store,
                                                std::shared_ptr<void> keep);

// For ranks that are threads of this process, or one rank alone. All ranks' communicators share the
// result.
std::shared_ptr<GroupMaker> make_local_groups();

// For one rank alone on a device that is not the CPU.
std::shared_ptr<GroupMaker> make_lone_groups(c10::Device device);

}  // namespace lockstep::inline v0
