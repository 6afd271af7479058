// FutureState: the state that a future shares with its producer. Not for programs.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/export.h"
#include "lockstep/core/mutex.h"
#include "lockstep/rpc/arriving.h"
#include "lockstep/rpc/task.h"

namespace lockstep::inline v0::rpc::internal {

class LOCKSTEP_API FutureState {
 public:
  FutureState() = default;
  virtual ~FutureState() = default;
  FutureState(const FutureState&) = delete;
  FutureState& operator=(const FutureState&) = delete;

  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // Once done: the error, or null.
  const std::exception_ptr& error() const noexcept { return error_; }

  // True for the one caller that may store the value or the error, and must then call finish().
  bool claim() noexcept { return !claimed_.exchange(true, std::memory_order_acq_rel); }
  void finish(std::exception_ptr error) noexcept;
  // claim(), the error and finish() in one; does nothing if the state was claimed.
  void fail(std::exception_ptr error) noexcept {
    if (claim()) finish(std::move(error));
  }

  // Returns false if it is not done before the deadline.
  bool wait_until(Deadline deadline);
  // The end of a wait without a deadline of its own, like waiting_deadline(); for a call that ends
  // by then, the wait lasts until the call's own error.
  Deadline waited_until(Deadline::Duration at_most) const;
  // Runs the task once it is done, by execute(); at once if it is done already.
  void on_done(Task task);

  // Also orders the streams of the value's readers after this. Called between claim() and finish().
  // `sent`: set before others see the future, for tensors that its maker may change once it is
  // done.
  void arrives_with(std::shared_ptr<const Arriving> arriving) { arriving_ = std::move(arriving); }
  void sent_with(std::shared_ptr<const Arriving> sent) { sent_ = std::move(sent); }
  // Once done: adds the devices that come_here() orders.
  void add_devices(std::vector<c10::Device>& devices) const {
    if (arriving_) arriving_->add_devices(devices);
    if (sent_) sent_->add_devices(devices);
  }
  // Called by a reader of the value, once done.
  void come_here() const {
    if (arriving_) arriving_->come_here();
    if (sent_) sent_->come_here();
  }

  // The time by which it will be done, where that is known.
  virtual std::optional<Deadline> deadline() const { return std::nullopt; }
  // No reader waits any longer: it is done with Cancelled, unless it is done.
  virtual void cancel();

 protected:
  // Helps to complete the result, until done or the deadline. Returns false if this thread cannot
  // help.
  virtual bool help_until(Deadline) { return false; }
  // Runs a continuation: here, at once; for calls' futures, on the agent's workers.
  virtual void execute(Task task) { task->run(); }

 private:
  std::atomic<bool> claimed_{false}, done_{false};
  std::exception_ptr error_;
  std::shared_ptr<const Arriving> arriving_, sent_;
  Mutex mutex_;
  ConditionVariable changed_;
  int waiting_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::vector<Task> after_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The deadline of a wait without one of its own: that of the call that is being served, or
// `at_most` from now.
LOCKSTEP_API Deadline waiting_deadline(Deadline::Duration at_most);

template <typename T>
class ValueState : public FutureState {
 public:
  // Called between claim() and finish().
  void store(T value) { value_.emplace(std::move(value)); }
  T& value() { return *value_; }

 private:
  std::optional<T> value_;
};
template <>
class ValueState<void> : public FutureState {};

}  // namespace lockstep::inline v0::rpc::internal
