// From arriving gradients to the averages of this rank's parts.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/stopwatch.h"
#include "lockstep/device/stream.h"
#include "lockstep/parallel/zero/internal/zero_state.h"

namespace lockstep::inline v0::internal {

void ZeroState::backward_began() {
  quiet_backward_ = quiet();
  buckets_.begin_backward();
  if (buckets_.units()) buckets_.units()->begin_backward();
  if (!quiet() && !settled_) lend_buffers();
}

void ZeroState::gradient_arrived(size_t index, const at::Tensor& passed) {
  const Stopwatch watch(times_.during);
  ZeroParameter& parameter = buckets_.parameters()[index];
  buckets_.arrived(index);
  if (settled_ || (parameter.arrived && !quiet())) {
    throw InvalidArgument(
        "ZeroOptimizer: the gradient of parameter '" + parameter.name +
        "' arrived again after it was counted for this step; put all backwards of a step but the "
        "last under no_sync(), switch accumulate on (stages 2 and 3), or overlap off "
        "(overlap_comm) if one backward reaches a parameter twice");
  }
  if (in_order() && !quiet() && parameter.bucket < started_)
    throw InvalidArgument("ZeroOptimizer: the gradient of parameter '" + parameter.name +
                          "' came when backward had left its unit, whose gradients were reduced "
                          "then; leave the unit out of ZeroUnits::names, or switch overlap off "
                          "(overlap_comm)");
  parameter.used = true;
  follow_stream();
  if (!buckets_.lends()) buckets_.place(index, passed);
  if (quiet()) {
    held_ = true;
    return;
  }
  // Buckets that finish here release their buffer before this gradient counts as one that waits for
  // it.
  while (on_device_ && parameter.bucket >= lent_ && finished_ < started_) {
    finish_bucket();
    lend_buffers();
  }
  parameter.arrived = true;
  --buckets_.buckets()[parameter.bucket].missing;
  if (buckets_.lends()) {
    took_held_ |= held_;
    if (parameter.bucket >= lent_ || !buckets_.place(index, passed))
      parameter.early = std::exchange(parameter.tensor.mutable_grad(), at::Tensor());
  }
  start_ready_buckets();
  comm_.progress();
}

void ZeroState::backward_ended() {
  buckets_.end_backward();
  if (buckets_.units()) buckets_.units()->end_backward(/*threw=*/false);
  if (!options_.accumulate || silencers_ > 0 || settled_) return;
  const Stopwatch watch(times_.during);
  follow_stream();
  finish_round();
}

// The progress of gradients differs between ranks; the units that backward has left do not. A
// reduction that started before a unit's fetch on one rank and after it on another would deadlock
// both, since streams of a device wait for each other: the fetch for the computation, and that for
// the reduction.
void ZeroState::take_turn(bool ended) {
  if (!ended) arm();
  if (quiet() || settled_) return;
  const Stopwatch watch(times_.during);
  follow_stream();
  const std::vector<ZeroBucket>& buckets = buckets_.buckets();
  size_t due = started_;
  while (due < buckets.size() && buckets[due].unit && buckets_.units()->over(*buckets[due].unit))
    ++due;
  while (started_ < due) {
    lend_buffers();
    if (started_ < lent_ && started_ - finished_ < kInFlight)
      start_bucket();
    else
      finish_bucket();
  }
}

void ZeroState::follow_stream() {
  if (!in_order()) return;
  const c10::Stream now = device::current_stream(comm_.capabilities().device);
  if (stream_ && *stream_ != now) device::order(*stream_, now);
  stream_ = now;
}

// Completes the reduction of the buckets whose gradients were complete. The number of those that
// had been started differs between ranks; the set of complete ones does not.
void ZeroState::backward_failed() {
  buckets_.end_backward();
  if (buckets_.units()) buckets_.units()->end_backward(/*threw=*/true);
  // At most one gradient of the current backward has arrived.
  const auto stale = [this](const ZeroParameter& one) {
    const at::Tensor& gradient = one.tensor.grad();
    if (!gradient.defined()) return false;
    return buckets_.lends() || gradient.is_alias_of(one.view);
  };
  const auto& parameters = buckets_.parameters();
  const auto there = std::count_if(parameters.begin(), parameters.end(), stale);
  const bool kept = buckets_.lends()
                        ? rounds_ > 0 || took_held_ || (quiet_backward_ && there > 1)
                        : std::any_of(parameters.begin(), parameters.end(), [&](const auto& one) {
                            return (one.arrived || quiet_backward_) && stale(one);
                          });
  std::vector<ZeroBucket>& buckets = buckets_.buckets();
  for (; finished_ < buckets.size(); finish_bucket()) {
    start_ready_buckets();
    if (finished_ == started_) break;
  }
  forget_round();
  if (!kept) return;
  if (buckets_.lends()) forget();
  throw InvalidArgument(
      buckets_.lends()
          ? "ZeroOptimizer: the backward before this one threw, and with its gradients those of "
            "the step's earlier backwards are gone; begin the step again (after leave_out() this "
            "is not said)"
          : "ZeroOptimizer: the backward before this one threw, and its gradients, some of them "
            "averages already, are still there; call zero_grad() after such a backward");
}

void ZeroState::lend_buffers() {
  std::vector<ZeroBucket>& buckets = buckets_.buckets();
  for (; lent_ < buckets.size(); ++lent_) {
    const std::optional<size_t>& after = buckets[lent_].after;
    if (after && *after >= finished_) return;
    if (buckets_.lends()) buckets_.lend(lent_);
  }
}

// A reduction needs memory for its result, so the number of pending ones is limited. On a device
// reductions are not polled, since each rank would see their end at another time: a reduction is
// finished where its place is needed, which orders streams.
void ZeroState::start_ready_buckets() {
  std::vector<ZeroBucket>& buckets = buckets_.buckets();
  while (!on_device_ && finished_ < started_ && buckets[finished_].work.test()) finish_bucket();
  lend_buffers();
  while (!in_order() && started_ < lent_ && buckets[started_].missing == 0) {
    if (started_ - finished_ == kInFlight) {
      if (!on_device_) return;
      finish_bucket();
      lend_buffers();
    }
    start_bucket();
  }
}

void ZeroState::start_bucket() {
  const at::NoGradGuard no_grad;
  ZeroBucket& bucket = buckets_.buckets()[started_];
  buckets_.place_all(started_);
  const bool master = bucket.own_master.defined();
  const bool wide = master && options_.reduce_float32;
  if (sharded()) {
    const at::Tensor gradients = wide ? bucket.gradients.to(at::kFloat) : bucket.gradients;
    // The destination of the average holds the gradients themselves or the averages of earlier
    // rounds, or has another type.
    const bool aside = !buckets_.lends() || rounds_ > 0 || (master && !wide);
    if (aside) bucket.arriving = at::empty({bucket.part}, gradients.options());
    bucket.work = parts().ireduce_scatter(aside ? bucket.arriving : bucket.own_gradient, gradients,
                                          ReduceOp::kAvg);
  } else if (comm_.size() > 1 && wide) {
    bucket.own_gradient.copy_(bucket.gradients);
    bucket.work = comm_.iall_reduce(bucket.own_gradient, ReduceOp::kAvg);
  } else if (comm_.size() > 1) {
    bucket.work = comm_.iall_reduce(bucket.gradients, ReduceOp::kAvg);
    bucket.arriving = master ? bucket.gradients : at::Tensor();
  }
  ++started_;
}

void ZeroState::finish_bucket() {
  const at::NoGradGuard no_grad;
  ZeroBucket& bucket = buckets_.buckets()[finished_];
  bucket.work.wait();
  if (bucket.arriving.defined() && rounds_ > 0)
    bucket.own_gradient.add_(bucket.arriving);
  else if (bucket.arriving.defined())
    bucket.own_gradient.copy_(bucket.arriving);
  bucket.arriving.reset();
  ++finished_;
}

// Parameters without a gradient count as zero.
void ZeroState::finish_round() {
  std::vector<ZeroBucket>& buckets = buckets_.buckets();
  while (finished_ < buckets.size()) {
    lend_buffers();
    while (started_ < lent_ && started_ - finished_ < kInFlight) start_bucket();
    finish_bucket();
  }
  ++rounds_;
  if (!options_.accumulate) return;
  forget_round();
  held_ = false;
}

void ZeroState::forget_round() {
  buckets_.forget_arrivals();
  took_held_ = false;
  lent_ = 0;
  started_ = 0;
  finished_ = 0;
}

void ZeroState::settle() {
  if (settled_) return;
  const Stopwatch watch(times_.waiting);
  follow_stream();
  buckets_.check_places();
  // A backward that threw has left a round incomplete: on all ranks, because its first bucket was
  // complete.
  bool waiting = rounds_ == 0 || started_ > 0;
  for (ZeroParameter& parameter : buckets_.parameters()) {
    const bool here = parameter.tensor.grad().defined();
    waiting |= here;
    parameter.used |= here;
    arrived_ |= parameter.used;
  }
  if (waiting) finish_round();
  settled_ = true;
}

std::vector<at::Tensor> ZeroState::own_gradients() const {
  std::vector<at::Tensor> own;
  for (const ZeroBucket& bucket : buckets_.buckets()) {
    own.push_back(bucket.own_gradient);
  }
  return own;
}

}  // namespace lockstep::inline v0::internal
