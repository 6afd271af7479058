// The end of a backward.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/ddp/internal/reducer_state.h"
#include "lockstep/replicas/sparse_sum.h"

namespace lockstep::inline v0::internal {

void ReducerState::backward_ended() {
  if (quiet_) return finish_quietly();
  const Stopwatch watch(times_.waiting);
  try {
    buckets_.end_backward();
    if (!buckets_.made()) make_buckets(ask_for_layout());
    take_unused_along();
    start_ready_buckets();
    complete();
  } catch (...) {
    reset();
    throw;
  }
  quiet_backwards_ = 0;
  reset();
}

// Keeps the set of used parameters for the backward that communicates.
void ReducerState::finish_quietly() {
  if (silencers_ == 0) ++quiet_backwards_;
  buckets_.end_backward();
}

// The rank whose order is used: the lowest one that has data.
int ReducerState::ask_for_layout() {
  return join_protocol_
             ? join_protocol_->call({.step = Step::kLayout}, Communicator::Site::current()).first
             : 0;
}

// In the order of arrival on the source; parameters that it did not use come last. A gradient
// counts as sparse if it is on any rank.
void ReducerState::make_buckets(int source) {
  const at::NoGradGuard no_grad;
  std::vector<Gradient>& gradients = buckets_.gradients();
  const auto n = static_cast<int64_t>(gradients.size());
  const at::Tensor sparse = at::zeros({n}, at::kByte);
  const at::Tensor order = at::empty({n}, at::kLong);
  for (size_t i = gradients.size(); i-- > 0;) {
    const at::Tensor& gradient = gradients[i].parameter.grad();
    sparse.mutable_data_ptr<uint8_t>()[i] = gradient.defined() && gradient.is_sparse();
    if (gradients[i].arrivals == 0) order_.push_back(i);
  }
  for (size_t k = 0; k < order_.size(); ++k)
    order.mutable_data_ptr<int64_t>()[k] = static_cast<int64_t>(order_[k]);
  const std::string note = note_of("layout" + buckets_.layout());
  comm_.iall_reduce(sparse, ReduceOp::kBitOr, call_note(note)).wait();
  comm_.broadcast(order, source);

  for (size_t k = 0; k < order_.size(); ++k) {
    order_[k] = static_cast<size_t>(order.const_data_ptr<int64_t>()[k]);
    gradients[k].sparse = sparse.const_data_ptr<uint8_t>()[k] != 0;
  }
  buckets_.make(comm_, order_, options_.bucket_sizes);
  options_.hook->prepare(comm_, buckets_.shown());
  if (!options_.static_graph || shadowing_) return;
  for (Gradient& gradient : gradients) gradient.expected = gradient.arrivals;
}

// Parameters without a gradient here still take part, because another rank may have used them.
void ReducerState::take_unused_along() {
  const at::NoGradGuard no_grad;
  std::vector<Gradient>& gradients = buckets_.gradients();
  if (!knows_used_) used_.zero_();
  auto* bits = used_.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < gradients.size(); ++i) {
    Gradient& gradient = gradients[i];
    const bool defined = gradient.parameter.grad().defined();
    const bool used = gradient.arrivals > 0 || (gradient.earlier && defined);
    if (used && !knows_used_) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | (1u << (i % 8)));
    if (gradient.sparse) continue;
    if (gradient.arrivals > 0 && gradient.complete() && !gradient.displaced) continue;
    if (defined)
      buckets_.place_or_move(i);
    else
      buckets_.clear_or_move(i);
    if (defined && !used) gradient.before = gradient.view.clone();
    --buckets_.buckets()[gradient.bucket].missing;
  }
}

void ReducerState::complete() {
  announce(Step::kFinish);
  const at::NoGradGuard no_grad;
  if (!knows_used_) {
    const std::string note = note_of("used parameters");
    comm_.iall_reduce(used_, ReduceOp::kBitOr, call_note(note)).wait();
    knows_used_ = options_.static_graph;
  }
  settle_dense();
  if (join_protocol_) join_protocol_->settle();
  settle_sparse();
  settle_unused();
  if (options_.static_graph && !shadowing_) check_static();
}

void ReducerState::settle_dense() {
  std::vector<Bucket>& buckets = buckets_.buckets();
  for (size_t i = 0; i < buckets.size(); ++i) {
    buckets[i].work.wait();
    options_.hook->finish(comm_, buckets_.shown()[i], call_note(buckets[i].note));
  }
}

void ReducerState::settle_sparse() {
  for (Gradient& gradient : buckets_.gradients()) {
    if (!gradient.sparse) continue;
    at::Tensor own;
    if (gradient.arrivals > 0 || gradient.earlier) own = gradient.parameter.grad();
    if (own.defined() && !own.is_sparse()) own = own.to_sparse(1);
    const at::Tensor sum = sum_sparse(comm_, own, gradient.parameter);
    if (sum.defined()) gradient.parameter.mutable_grad() = sum.div_(comm_.size());
  }
}

bool ReducerState::used_somewhere(size_t index) const {
  return (used_.const_data_ptr<uint8_t>()[index / 8] >> (index % 8) & 1) != 0;
}

void ReducerState::settle_unused() {
  std::string missing;
  std::vector<Gradient>& gradients = buckets_.gradients();
  for (size_t i = 0; i < gradients.size(); ++i) {
    Gradient& gradient = gradients[i];
    if (used_somewhere(i)) {
      if (!gradient.sparse) gradient.parameter.mutable_grad() = gradient.view;
      continue;
    }
    if (options_.unused == Unused::kThrow)
      missing += (missing.empty() ? "'" : ", '") + gradient.name + "'";
    if (gradient.sparse) continue;
    if (gradient.before.defined())
      gradient.view.copy_(gradient.before);
    else if (options_.unused == Unused::kZero)
      gradient.parameter.mutable_grad() = gradient.view.zero_();
  }
  if (!missing.empty()) {
    throw InvalidArgument("no rank's backward reached " + missing +
                          "; leave it out of the loss on purpose with Unused::kLeave, or mend the "
                          "model");
  }
}

void ReducerState::check_static() const {
  for (const Gradient& gradient : buckets_.gradients()) {
    if (gradient.arrivals == gradient.expected) continue;
    throw InvalidArgument("the gradient of parameter '" + gradient.name + "' arrived " +
                          std::to_string(gradient.arrivals) + " times in this backward and " +
                          std::to_string(gradient.expected) +
                          " times in the first: the graph is not static; leave static_graph out");
  }
}

// For a rank without data: it contributes its gradients of backwards that did not communicate, or
// nothing.
void ReducerState::begin_shadow() {
  if (shadowing_) return;
  forget_failed_backward();
  shadowing_ = true;
  for (Gradient& gradient : buckets_.gradients()) {
    if (!gradient.earlier) gradient.parameter.mutable_grad().reset();
  }
  if (buckets_.made()) take_unused_along();
}

bool ReducerState::shadow(const JoinState& join_state) {
  if (join_state.step.step == Step::kForward) {
    forwards_ = join_state.step.detail[0];
    batch_ = join_state.step.detail[1];
    return false;
  }
  try {
    begin_shadow();
    if (join_state.step.step == Step::kLayout) {
      make_buckets(join_state.first);
      take_unused_along();
    } else if (join_state.step.step == Step::kBucket) {
      start_bucket();
    } else if (join_state.step.step == Step::kFinish) {
      complete();
      quiet_backwards_ = 0;
      reset();
      return true;
    }
  } catch (...) {
    reset();
    throw;
  }
  return false;
}

}  // namespace lockstep::inline v0::internal
