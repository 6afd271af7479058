// FutureState: what a future and whoever fulfils it share. Not for programs.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/mutex.h"
#include "lockstep/rpc/arriving.h"
#include "lockstep/rpc/task.h"

namespace lockstep::rpc::internal {

class FutureState {
 public:
  FutureState() = default;
  virtual ~FutureState() = default;
  FutureState(const FutureState&) = delete;
  FutureState& operator=(const FutureState&) = delete;

  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // Once done: what went wrong, or null.
  const std::exception_ptr& error() const noexcept { return error_; }

  // True for the one caller that is to store the value or the error, and then to call finish().
  bool claim() noexcept { return !claimed_.exchange(true, std::memory_order_acq_rel); }
  void finish(std::exception_ptr error) noexcept;
  // The three of them, for an error; nothing where somebody was first.
  void fail(std::exception_ptr error) noexcept {
    if (claim()) finish(std::move(error));
  }

  // False: not before the deadline.
  bool wait_until(Deadline deadline);
  // By when a wait without a deadline of its own ends: as waiting_deadline(); but a call that ends by then ends with words of
  // its own, which are waited for.
  Deadline waited_until(Deadline::Duration at_most) const;
  // Runs the task once it is done, at once where it is: by execute().
  void on_done(Task task);

  // The streams of whoever reads the value come after this, too. By who has claimed it, before finish(); `sent`: before others see
  // the future, for what its maker may change once it is done.
  void arrives_with(std::shared_ptr<const Arriving> arriving) { arriving_ = std::move(arriving); }
  void sent_with(std::shared_ptr<const Arriving> sent) { sent_ = std::move(sent); }
  // Once done: of what come_here() waits for.
  void add_devices(std::vector<c10::Device>& devices) const {
    if (arriving_) arriving_->add_devices(devices);
    if (sent_) sent_->add_devices(devices);
  }
  // Once done, by whoever reads the value.
  void come_here() const {
    if (arriving_) arriving_->come_here();
    if (sent_) sent_->come_here();
  }

  // By when it will be done at the latest, where that is known.
  virtual std::optional<Deadline> deadline() const { return std::nullopt; }
  // Nobody waits any longer: done with Cancelled, unless it is done.
  virtual void cancel();

 protected:
  // Does what brings the end nearer, until done or the deadline; false: there is nothing that this thread can do.
  virtual bool help_until(Deadline) { return false; }
  // Where what follows runs: here, at once; calls' futures: on the agent's workers.
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

// By when a wait without a deadline of its own ends: with the call that is being served, or `at_most` from now.
Deadline waiting_deadline(Deadline::Duration at_most);

template <typename T>
class ValueState : public FutureState {
 public:
  // After claim(), before finish().
  void store(T value) { value_.emplace(std::move(value)); }
  T& value() { return *value_; }

 private:
  std::optional<T> value_;
};
template <>
class ValueState<void> : public FutureState {};

}  // namespace lockstep::rpc::internal
