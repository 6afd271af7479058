#include "lockstep/parallel/ddp/internal/replica.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/ddp/join.h"
#include "lockstep/parallel/ddp/same_on_all_ranks.h"

namespace lockstep {
namespace internal {
namespace {

NamedTensors those_with_gradients(NamedTensors parameters) {
  std::erase_if(parameters, [](const auto& entry) { return !entry.second.requires_grad(); });
  return parameters;
}

NamedTensors both(NamedTensors first, const NamedTensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

Replica::Replica(NamedTensors parameters, NamedTensors buffers, Communicator comm,
                 DdpOptions options)
    : comm_(std::move(comm)),
      options_(std::move(options)),
      parameters_(std::move(parameters)),
      buffers_(std::move(buffers)),
      reducer_((check_same_on_all_ranks(comm_, both(parameters_, buffers_)),
                broadcast_tensors(comm_, both(parameters_, buffers_)),
                those_with_gradients(parameters_)),
               comm_,
               {.bucket_sizes = options_.bucket_sizes,
                .hook = options_.hook,
                .unused = options_.unused,
                .divide_by = options_.divide_by,
                .static_graph = options_.static_graph}) {}

void Replica::before_forward(bool training, int64_t samples) {
  if (!reducer_.before_forward(training, samples)) return;
  const bool communicates = reducer_.communicates();
  Roll roll{.contributing = comm_.size(), .first = 0, .step = {}};
  if (roll_call_ && communicates) {
    roll = roll_call_->call({Step::kForward, {reducer_.forwards(), reducer_.batch(), 0}},
                            Communicator::Site::current());
    note(roll);
  }
  if (options_.check_every > 0 && reducer_.forwards() % options_.check_every == 0 &&
      roll.contributing == comm_.size() && !uneven_)
    check_equal_values(comm_, parameters_);
  if (communicates) exchange_buffers(roll.first, roll.contributing, /*own_counts=*/true);
}

void Replica::exchange_buffers(int source, int contributing, bool own_counts) {
  if (options_.buffers == Buffers::kOwn) return;
  if (options_.buffers == Buffers::kBroadcast) return broadcast_tensors(comm_, buffers_, source);
  const at::NoGradGuard no_grad;
  for (const auto& [name, buffer] : buffers_) {
    const at::Tensor values = buffer.detach();
    if (!values.is_floating_point()) {
      broadcast_tensors(comm_, {{name, values}}, source);
    } else if (contributing == comm_.size()) {
      comm_.all_reduce(values, ReduceOp::kAvg);
    } else {
      if (!own_counts) values.zero_();
      comm_.all_reduce(values, ReduceOp::kSum);
      values.div_(contributing);
    }
  }
}

void Replica::note(const Roll& roll) {
  last_source_ = roll.first;
  uneven_ |= roll.contributing < comm_.size();
}

void Replica::begin_join() {
  if (roll_call_) throw InvalidArgument("join(): the model's last Join has not been finished");
  roll_call_ = std::make_shared<RollCall>(comm_);
  reducer_.set_roll_call(roll_call_);
  uneven_ = false;
}

void Replica::leave_join() {
  roll_call_.reset();
  reducer_.set_roll_call(nullptr);
}

void Replica::finish_join(const std::function<void()>& after_backward, Communicator::Site site) {
  for (;;) {
    const Roll roll = roll_call_->call({}, site);
    if (roll.contributing == 0) break;
    if (roll.step.step == Step::kForward) {
      note(roll);
      exchange_buffers(roll.first, roll.contributing, /*own_counts=*/false);
    }
    if (reducer_.shadow(roll) && after_backward) after_backward();
  }
  const bool uneven = uneven_;
  leave_join();
  uneven_ = false;
  if (!uneven) return;
  broadcast_tensors(comm_, buffers_, last_source_);
  if (!after_backward) broadcast_tensors(comm_, parameters_, last_source_);
}

}  // namespace internal

Join::Join(std::shared_ptr<internal::Replica> replica) : replica_(std::move(replica)) {
  replica_->begin_join();
}

Join::~Join() {
  if (replica_) replica_->leave_join();
}

void Join::finish(const std::function<void()>& after_backward, std::source_location site) {
  if (!replica_) throw InvalidArgument("Join::finish: finished before");
  const std::shared_ptr<internal::Replica> replica = replica_;
  replica->finish_join(after_backward, site);
  replica_.reset();
}

}  // namespace lockstep
