#include "lockstep/parallel/ddp/internal/reducer_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::internal {

ReducerState::ReducerState(NamedTensors parameters, Communicator comm, ReducerOptions options)
    : comm_(std::move(comm)),
      options_(std::move(options)),
      id_(comm_.stats().collectives),
      buckets_(std::move(parameters), !options_.hook || options_.hook->flat_only()),
      used_(at::zeros({static_cast<int64_t>((buckets_.gradients().size() + 7) / 8)}, at::kByte)) {
  if (!options_.hook) options_.hook = std::make_shared<CommHook>();
}

void ReducerState::install_hooks() {
  std::vector<at::Tensor> parameters;
  for (const Gradient& gradient : buckets_.gradients()) parameters.push_back(gradient.parameter);
  watch(parameters);
}

void ReducerState::count_forward() {
  ++forwards_;
  if (batches_) batch_ = batches_();
}

void ReducerState::backward_began() {
  quiet_ = !communicates();
  buckets_.begin_backward();
}

ReducerTimes ReducerState::times() const {
  ReducerTimes times = times_;
  times.copied_bytes = buckets_.copied_bytes();
  return times;
}

void ReducerState::accumulate(int64_t steps) {
  if (steps < 1) {
    throw InvalidArgument("accumulate(" + std::to_string(steps) +
                          "): give 1 or more backwards, of which the last communicates");
  }
  accumulate_ = steps;
  quiet_backwards_ = 0;
}

void ReducerState::gradient_arrived(size_t index, const at::Tensor& passed) {
  try {
    Gradient& gradient = buckets_.gradients()[index];
    buckets_.arrived(index);
    if (quiet_) {
      gradient.earlier = true;
      return;
    }
    ++gradient.arrivals;
    check_arrival(gradient);
    if (!buckets_.made()) {
      if (gradient.arrivals == 1) order_.push_back(index);
      return;
    }
    if (!gradient.complete() || gradient.sparse) return;
    const Stopwatch watch(times_.during);
    if (buckets_.place_with_bucket(index, passed))
      --buckets_.buckets()[gradient.bucket].missing;
    else
      gradient.displaced = true;
    start_ready_buckets();
    comm_.progress();
  } catch (...) {
    reset();
    throw;
  }
}

void ReducerState::check_arrival(const Gradient& gradient) const {
  const bool counts_first = options_.static_graph && !buckets_.made();
  if (gradient.arrivals <= gradient.expected || counts_first) return;
  const std::string what = "the gradient of parameter '" + gradient.name + "' arrived ";
  if (options_.static_graph) {
    throw InvalidArgument(what + "more often than in the first backward (" +
                          std::to_string(gradient.expected) +
                          " times): the graph is not static; leave static_graph out");
  }
  throw InvalidArgument(what +
                        "twice in one backward; its bucket may be reduced already. Use it in one "
                        "checkpointed part only, or set static_graph if every step is the same");
}

void ReducerState::start_ready_buckets() {
  const std::vector<Bucket>& buckets = buckets_.buckets();
  while (started_ < buckets.size() && buckets[started_].missing == 0) start_bucket();
}

void ReducerState::start_bucket() {
  buckets_.place_waiting(started_);
  announce(Step::kBucket, static_cast<int64_t>(started_));
  Bucket& bucket = buckets_.buckets()[started_];
  bucket.note = note_of("bucket " + std::to_string(started_));
  const at::NoGradGuard no_grad;
  bucket.work = options_.hook->start(comm_, buckets_.shown()[started_], call_note(bucket.note));
  ++started_;
}

void ReducerState::announce(Step step, int64_t detail) {
  if (join_protocol_ && !shadowing_) join_protocol_->start({step, {detail}});
}

// Identifies the reducer's call, so that ranks out of step get Mismatch even if operation and shape
// are the same.
std::string ReducerState::note_of(const std::string& what) const {
  return what + " of forward " + std::to_string(forwards_) +
         (batches_ ? " (batch " + std::to_string(batch_) + ")" : "") + ", reducer " +
         std::to_string(id_);
}

// Ends the reductions that a failed backward had started: their buckets must not be written
// meanwhile.
void ReducerState::backward_failed() {
  try {
    for (size_t i = 0; i < started_; ++i) buckets_.buckets()[i].work.wait();
    if (join_protocol_) join_protocol_->settle();
  } catch (...) {
    reset();
    throw;
  }
  reset();
}

void ReducerState::reset() {
  buckets_.end_backward();
  buckets_.reset();
  order_.clear();
  started_ = 0;
  shadowing_ = false;
}

}  // namespace lockstep::inline v0::internal
