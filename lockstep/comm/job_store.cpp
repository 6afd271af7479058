#include "lockstep/comm/job_store.h"

#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/launch/spare_wait.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0 {
namespace {

// Keys of init() have another prefix.
constexpr const char* kProgramKeys = "program";

}  // namespace

std::shared_ptr<Store> job_store(Deadline deadline) {
  launch::wait_if_spare();
  const EnvLookup env = process_env();
  Meeting meeting = decide_meeting({}, env);
  if (meeting.kind == Meeting::Kind::kAlone) return std::make_shared<HashStore>();
  // In these cases init()'s rank 0 listens at the one address that all ranks know.
  const bool one_address = meeting.kind == Meeting::Kind::kRankZero ||
                           (meeting.kind == Meeting::Kind::kTorch && !meeting.torch_agent_store);
  if (one_address)
    throw InvalidArgument(
        "job_store(): a job that is only told where rank 0 listens (srun, or MASTER_ADDR without "
        "torchrun's agent) has no store but init()'s; start the program by lockstep run");
  meeting.key_prefix += "/program";
  return std::make_shared<PrefixStore>(kProgramKeys,
                                       kept_store(open_store(meeting, {}, env, deadline)));
}

}  // namespace lockstep::inline v0
