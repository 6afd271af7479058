#include "lockstep/rpc/future.h"

#include <algorithm>

namespace lockstep::inline v0::rpc::internal {

CallContext& this_context() {
  thread_local CallContext context;
  return context;
}

Deadline waiting_deadline(Deadline::Duration at_most) {
  const auto& inherited = this_context().deadline;
  return inherited && inherited->remaining() < at_most ? *inherited : Deadline::after(at_most);
}

void FutureState::finish(std::exception_ptr error) noexcept {
  error_ = std::move(error);
  std::vector<Task> after;
  {
    const MutexLock lock(mutex_);
    done_.store(true, std::memory_order_release);
    after.swap(after_);
    if (waiting_ > 0) changed_.notify_all();
  }
  for (auto& task : after) execute(std::move(task));
}

bool FutureState::wait_until(Deadline deadline) {
  if (done()) return true;
  const auto own = this->deadline();
  // The agent enforces a call's deadline; shortly afterwards this thread enforces it itself.
  while (help_until(own && own->remaining() < deadline.remaining() ? *own : deadline))
    if (done()) return true;
  MutexLock lock(mutex_);
  ++waiting_;
  while (!done() && changed_.wait_until(lock, deadline.time())) {
  }
  --waiting_;
  return done();
}

Deadline FutureState::waited_until(Deadline::Duration at_most) const {
  constexpr auto kWords = std::chrono::seconds(1);
  const Deadline end = waiting_deadline(at_most);
  const auto own = deadline();
  if (!own || own->time() > end.time()) return end;
  return Deadline::after(own->remaining() + kWords);
}

void FutureState::on_done(Task task) {
  {
    const MutexLock lock(mutex_);
    if (!done()) {
      after_.push_back(std::move(task));
      return;
    }
  }
  execute(std::move(task));
}

void FutureState::cancel() {
  fail(std::make_exception_ptr(Cancelled("the result was cancelled")));
}

void throw_empty_future() {
  throw InvalidArgument("this rpc::Future is of no call");
}

void throw_not_done(Deadline deadline) {
  throw Timeout("the result of a future has not come within " +
                std::to_string(deadline.timeout_seconds()) + " s");
}

}  // namespace lockstep::inline v0::rpc::internal
