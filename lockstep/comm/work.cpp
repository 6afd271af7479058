#include "lockstep/comm/work.h"

#include "lockstep/comm/internal/communicator_impl.h"

namespace lockstep::inline v0 {

bool Work::State::test() {
  if (operation_) return impl_->test(*operation_);
  bool over = true;
  for (Work& part : parts_) over &= part.test();
  if (over) finish();
  return over;
}

void Work::State::wait(const Deadline* deadline) {
  if (operation_) {
    impl_->wait(*operation_, deadline ? *deadline : Deadline::after(impl_->options().timeout));
    return;
  }
  for (Work& part : parts_) {
    if (deadline) {
      part.wait(*deadline);
    } else {
      part.wait();
    }
  }
  finish();
}

void Work::State::finish() {
  parts_.clear();
  if (const auto after = std::exchange(after_, nullptr)) after();
}

Work::Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

bool Work::test() {
  return !state_ || state_->test();
}

void Work::wait() {
  if (state_) state_->wait(nullptr);
}

void Work::wait(Deadline deadline) {
  if (state_) state_->wait(&deadline);
}

}  // namespace lockstep::inline v0
