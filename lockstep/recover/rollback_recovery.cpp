#include "lockstep/recover/rollback_recovery.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/recover/holders.h"
#include "lockstep/recover/rank_copy.h"
#include "lockstep/recover/rollback.h"

namespace lockstep::inline v0 {
namespace {

using recover::decide_rollback;
using recover::KeptStates;
using recover::replica_holder;
using recover::replicated_rank;
using recover::Rollback;

// The number of ranks of the largest host.
int most_local(Communicator& comm) {
  const std::array<int64_t, 1> mine{comm.local_size()};
  int64_t most = 1;
  for (const auto& row : recover::exchange_numbers(comm, mine)) most = std::max(most, row[0]);
  return static_cast<int>(most);
}

std::vector<KeptStates> exchange(Communicator& comm, const KeptStates& own) {
  const std::array<int64_t, 5> mine{own.own[0], own.own[1], own.copy[0], own.copy[1], own.begun};
  std::vector<KeptStates> ranks;
  for (const auto& row : recover::exchange_numbers(comm, mine))
    ranks.push_back({{row[0], row[1]}, {row[2], row[3]}, row[4] != 0});
  return ranks;
}

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::kByte);
}

}  // namespace

RollbackRecovery::RollbackRecovery(Communicator comm, RollbackOptions options)
    : comm_(std::move(comm)), options_(options) {
  if (options_.every < 1)
    throw InvalidArgument("RollbackRecovery: every is " + std::to_string(options_.every) +
                          "; give 1 or more steps");
  const Deadline deadline = Deadline::after(options_.patience);
  recover::say_at_work(comm_);
  try {
    resume();
  } catch (...) {
    const recover::DeadRanks dead = recover::dead_ranks_of(comm_, /*shrinks=*/false);
    recover::reason_to_go_on(dead, lost_);
    recover::meet_again(
        comm_, dead, deadline, times_, [this] { resume(); }, [this] { return lost_; });
  }
}

void RollbackRecovery::begin(const State& state) {
  // After a recovery the state that all went back to exists, and so do its replicas.
  if (latest().step != step_ || !begun_) {
    keep(state);
    wait(latest());
    comm_.barrier();
  }
  begun_ = true;
}

void RollbackRecovery::stepped(const State& state) {
  if (!begun_) throw InvalidArgument("RollbackRecovery: begin() comes before the first step");
  ++step_;
  if (step_ % options_.every != 0) return;
  wait(latest());
  copies_->barrier();  // all ranks have the former copies, so the ones before them may be freed
  latest_ = 1 - latest_;
  keep(state);
}

void RollbackRecovery::finish() {
  recover::finish_together(comm_);
}

void RollbackRecovery::wait(Kept& kept) {
  for (Work& work : kept.pending) work.wait();
  kept.pending.clear();
}

// Keeps the state of step_ in the memory of a forgotten one; its replicas are then being sent.
void RollbackRecovery::keep(const State& state) {
  state_.reset();  // its memory may be the target
  Kept& kept = latest();
  kept.step = -1;
  kept.own = state(std::exchange(kept.own, at::Tensor()));
  at::Tensor copy = std::exchange(kept.copy, at::Tensor());
  kept.step = step_;
  start_copy(kept, std::move(copy));
}

void RollbackRecovery::start_copy(Kept& kept, at::Tensor memory) {
  const int size = comm_.size(), rank = comm_.rank();
  if (size == 1) return;
  const int holder = replica_holder(rank, size, local_),
            replicated = replicated_rank(rank, size, local_);
  const at::Tensor own_length = at::full({1}, kept.own.numel(), at::kLong);
  const at::Tensor length = at::empty({1}, at::kLong);
  Work sent = copies_->isend(own_length, holder);
  copies_->recv(length, replicated);
  sent.wait();
  const int64_t count = *length.const_data_ptr<int64_t>();
  // States grow by a few bytes now and then.
  if (!memory.defined() || memory.storage().nbytes() < static_cast<size_t>(count))
    memory = bytes(count + count / 64);
  // Only once it is being received: the memory held another step before.
  const at::Tensor copy = at::empty({0}, at::kByte).set_(memory.storage(), 0, {count});
  kept.pending.push_back(copies_->irecv(copy, replicated));
  kept.copy = copy;
  kept.pending.push_back(copies_->isend(kept.own, holder));
}

// Before the communicator is given up: data that has arrived counts, whether or not a wait has
// returned for it.
void RollbackRecovery::give_up_pending() noexcept {
  for (Kept& kept : kept_) {
    if (kept.pending.empty()) continue;
    bool arrived = false;
    try {
      arrived = kept.pending.front().test();
    } catch (...) {  // it was lost with its sender, or with the communicator
    }
    kept.pending.clear();
    if (!arrived) kept.copy = at::Tensor();
  }
}

void RollbackRecovery::recover() {
  const recover::DeadRanks dead = recover::dead_ranks_of(comm_, /*shrinks=*/false);
  const std::string reason = recover::reason_to_go_on(dead, lost_);
  give_up_pending();
  Rollback plan;
  recover::meet_again(
      comm_, dead, Deadline::after(options_.patience), times_, [&] { plan = resume(); },
      [this] { return lost_; });
  ++recoveries_;
  int speaker = 0;  // the first rank that was there before
  const auto& replaced = plan.newcomers;
  while (std::find(replaced.begin(), replaced.end(), speaker) != replaced.end()) ++speaker;
  if (comm_.rank() != speaker) return;
  if (plan.anew)
    log_warning(
        "no rank has a state to go back to, the run begins anew, or from its last "
        "checkpoint; what had happened: " +
        reason);
  else
    log_warning(
        recover::recovery_line("the run goes on from its copies of step " + std::to_string(step_),
                               recover::replaced_text(replaced), times_, reason));
}

// Called in a new generation: afterwards all ranks have their states of one step, and there is a
// copy of each of them.
Rollback RollbackRecovery::resume() {
  give_up_pending();
  copies_ = comm_.duplicate();
  local_ = most_local(comm_);
  KeptStates own;
  own.begun = begun_;
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (kept_[i].own.defined()) own.own[i] = kept_[i].step;
    if (kept_[i].copy.defined()) own.copy[i] = kept_[i].step;
  }
  const std::vector<KeptStates> ranks = exchange(comm_, own);
  lost_ = true;
  Rollback plan = recover::decided_by_all(comm_, [&] { return decide_rollback(ranks, local_); });
  lost_ = false;
  if (plan.anew) {
    kept_ = {};
    step_ = 0;
    state_.reset();
    return plan;
  }
  const int size = comm_.size(), rank = comm_.rank();
  const int replicated = replicated_rank(rank, size, local_);
  const auto of_step = [&]() -> Kept& {
    return kept_[0].step == plan.step && (kept_[0].own.defined() || kept_[0].copy.defined())
               ? kept_[0]
               : kept_[1];
  };
  at::Tensor mine = of_step().step == plan.step ? of_step().own : at::Tensor();
  const auto is_new = [&](int r) {
    return std::find(plan.newcomers.begin(), plan.newcomers.end(), r) != plan.newcomers.end();
  };
  if (is_new(replicated) && replicated != rank)
    recover::send_copy(*copies_, of_step().copy, replicated);
  if (is_new(rank)) mine = recover::receive_copy(*copies_, replica_holder(rank, size, local_));
  // This rank's own state is valid from now on, and its replica as soon as it has arrived, whatever
  // happens on the way.
  Kept& kept = of_step();
  kept.step = plan.step;
  kept.own = mine;
  begun_ = true;
  Kept next{.step = plan.step, .own = mine, .copy = {}, .pending = {}};
  start_copy(next, at::Tensor());
  wait(next);
  kept.copy = next.copy;
  comm_.barrier();
  latest_ = &kept == kept_.data() ? 0 : 1;
  kept_[1 - latest_] = {};
  step_ = plan.step;
  state_ = mine;
  return plan;
}

}  // namespace lockstep::inline v0
