#include "lockstep/parallel/ddp/reducer.h"

#include <ATen/core/grad_mode.h>

#include "lockstep/parallel/ddp/internal/reducer_state.h"

namespace lockstep::inline v0 {

Reducer::Reducer(NamedTensors parameters, Communicator comm, ReducerOptions options)
    : state_(std::make_shared<internal::ReducerState>(std::move(parameters), std::move(comm),
                                                      std::move(options))) {
  state_->install_hooks();
}

Reducer::~Reducer() = default;

bool Reducer::before_forward(bool counts) {
  state_->forget_failed_backward();
  if (!counts || !at::GradMode::is_enabled()) return false;
  state_->count_forward();
  return true;
}

int64_t Reducer::forwards() const {
  return state_->forwards();
}

int64_t Reducer::batch() const {
  return state_->batch();
}

void Reducer::follow(std::function<int64_t()> batches) {
  state_->follow(std::move(batches));
}

void Reducer::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return;
  output.register_hook([weak = std::weak_ptr(state_)](const at::Tensor&) {
    if (const auto state = weak.lock()) state->arm(/*outermost=*/true);
  });
}

void Reducer::accumulate(int64_t steps) {
  state_->accumulate(steps);
}

bool Reducer::communicates() const {
  return state_->communicates();
}

ReducerTimes Reducer::times() const {
  return state_->times();
}

size_t Reducer::bucket_count() const {
  return state_->bucket_count();
}

void Reducer::set_join_protocol(std::shared_ptr<internal::JoinProtocol> join_protocol) {
  state_->set_join_protocol(std::move(join_protocol));
}

bool Reducer::shadow(const internal::JoinState& join_state) {
  return state_->shadow(join_state);
}

NoSync::NoSync(Reducer& reducer) : state_(reducer.state_) {
  state_->silence(1);
}

NoSync::~NoSync() {
  if (state_) state_->silence(-1);
}

}  // namespace lockstep::inline v0
