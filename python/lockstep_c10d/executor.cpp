#include "executor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <sched.h>

#include <algorithm>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::python {
namespace {

using std::chrono::microseconds;

// What to do between two rounds of progress that brought nothing.
class Backoff {
 public:
  void pause() {
    ++count_;
    if (count_ < kSpins) {
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
    } else if (!slow_) {
      ::sched_yield();
      if (count_ % kSpins == 0) slow_ = Deadline::Clock::now() - start_ > kYieldFor;
    } else {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(sleep_ * 2, kLongestSleep);
    }
  }
  // Whether to look at the clock in this round.
  bool check_time() const { return slow_ || count_ % kSpins == kSpins - 1; }

 private:
  static constexpr int kSpins = 64;
  // Large tensors move in rounds: sleeping between those would cost more than the processor's time.
  static constexpr auto kYieldFor = std::chrono::milliseconds(50);
  static constexpr auto kLongestSleep = microseconds(1000);

  int count_ = 0;
  bool slow_ = false;
  microseconds sleep_{50};
  Deadline::Clock::time_point start_ = Deadline::Clock::now();
};

std::exception_ptr dist_backend_error(const std::string& text) {
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

// Python gets torch.distributed.DistBackendError, as from other backends.
std::exception_ptr to_c10(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument&) {
    return error;
  } catch (const Timeout& e) {  // in the words that programs look for
    return dist_backend_error(std::string("lockstep: Timed out waiting: ") + e.what());
  } catch (const lockstep::Error& e) {
    return dist_backend_error(std::string("lockstep: ") + e.what());
  } catch (...) {
    return error;
  }
}

constexpr const char* kClosed = "the process group was destroyed before the operation was over";

}  // namespace

ExecutorWork::ExecutorWork(int rank, uint64_t sequence, Task task,
                           std::shared_ptr<Executor> executor)
    : c10d::Work(rank, task.type, task.title, task.inputs),
      sequence_(sequence),
      task_(std::move(task)),
      executor_(std::move(executor)),
      source_(task_.known_source) {}

bool ExecutorWork::isCompleted() {
  if (!completed()) executor_->poke();
  return completed();
}

bool ExecutorWork::isSuccess() const {
  return completed() && !exception();
}

std::vector<at::Tensor> ExecutorWork::result() {
  TORCH_CHECK(completed(), "Work needs to be completed before result() is called; call wait()");
  TORCH_CHECK(task_.outputs.size() <= 1,
              "result() has no place for a list of lists; use get_future().value()");
  return task_.outputs.empty() ? std::vector<at::Tensor>() : task_.outputs.front();
}

bool ExecutorWork::wait(std::chrono::milliseconds timeout) {
  if (!completed()) {
    std::optional<Deadline> deadline;
    if (timeout != kNoTimeout) deadline = Deadline::after(timeout);
    if (!executor_->wait(*this, deadline)) {
      C10_THROW_ERROR(DistBackendError, std::string("lockstep: ") + task_.title + " was not over " +
                                            "after the " + std::to_string(timeout.count()) +
                                            " ms that wait() was given; it goes on");
    }
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> ExecutorWork::getFuture() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!future_) {
    const c10::TypePtr tensors = c10::ListType::create(c10::TensorType::get());
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        task_.outputs.size() > 1 ? c10::ListType::create(tensors) : tensors);
  }
  auto future = future_;
  if (completed()) {
    complete_future(std::move(lock));
  } else {
    lock.unlock();
    executor_->wake_helper(/*at_once=*/true);  // whoever waits for a future drives nothing
  }
  return future;
}

// Tells whoever has the future, once. Gives the lock up first: callbacks run here.
void ExecutorWork::complete_future(std::unique_lock<std::mutex> lock) {
  if (!future_ || future_set_) return;
  future_set_ = true;
  const auto future = future_;
  const std::exception_ptr error = exception_;
  lock.unlock();
  if (error) {
    future->setError(error);
  } else if (task_.outputs.size() > 1) {
    future->markCompleted(c10::IValue(task_.outputs));
  } else {
    future->markCompleted(
        c10::IValue(task_.outputs.empty() ? std::vector<at::Tensor>() : task_.outputs.front()));
  }
}

void ExecutorWork::complete(std::exception_ptr error) {
  if (!error && task_.finish) {
    try {
      const at::AutoDispatchBelowADInplaceOrView below;
      task_.finish();
    } catch (...) {
      error = std::current_exception();
    }
  }
  task_.steps.clear();
  task_.finish = nullptr;
  task_.source = nullptr;
  task_.inputs.clear();
  finish(error ? to_c10(error) : nullptr);
  over_.store(true, std::memory_order_release);
}

void Bell::ring() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    rung_ = true;
  }
  rings_.notify_one();
}

void Bell::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  rings_.wait(lock, [this] { return rung_; });
  rung_ = false;
}

void Bell::wait_for(std::chrono::microseconds longest) {
  std::unique_lock<std::mutex> lock(mutex_);
  rings_.wait_for(lock, longest, [this] { return rung_; });
  rung_ = false;
}

Executor::Executor(Communicator comm) : comm_(std::move(comm)), rank_(comm_->rank()) {}

Executor::~Executor() {
  close();
}

c10::intrusive_ptr<ExecutorWork> Executor::submit(uint64_t sequence, Task task) {
  const bool async = task.async;
  auto work =
      c10::make_intrusive<ExecutorWork>(rank_, sequence, std::move(task), shared_from_this());
  Finished finished;
  {
    const auto lock = enter();
    TORCH_CHECK(comm_, "lockstep: the process group was destroyed");
    pending_.push_back(work);
    poll(finished, false);
  }
  complete(finished);
  if (!work->completed()) {
    if (async)
      wake_helper(/*at_once=*/false);
    else
      wait(*work, std::nullopt);
  }
  // What is known to have failed is told at once.
  if (work->completed()) {
    if (const std::exception_ptr error = work->exception()) std::rethrow_exception(error);
  }
  return work;
}

bool Executor::wait(const ExecutorWork& work, const std::optional<Deadline>& deadline) {
  ++drivers_;
  const bool over = drive([&work] { return work.completed(); }, deadline);
  if (--drivers_ == 0 && count_ > 0) wake_helper(/*at_once=*/false);
  return over;
}

bool Executor::drive(const std::function<bool()>& over, const std::optional<Deadline>& deadline) {
  Backoff backoff;
  while (!over()) {
    Finished finished;
    {
      const auto lock = enter();
      poll(finished, backoff.check_time());
    }
    const bool moved = !finished.empty();
    complete(finished);
    if (over()) return true;
    if (deadline && backoff.check_time() && deadline->expired()) return false;
    if (!moved) backoff.pause();
  }
  return true;
}

void Executor::poke() {
  Finished finished;
  {
    const auto lock = enter();
    poll(finished, false);
  }
  complete(finished);
}

void Executor::forget(const ExecutorWork& work) {
  const auto lock = enter();
  std::erase_if(pending_, [&work](const auto& other) { return other.get() == &work; });
  count_.store(pending_.size());
}

void Executor::poll(Finished& finished, bool check_deadlines) {
  const at::AutoDispatchBelowADInplaceOrView below;
  bool first = true;     // no collective is in the way
  bool blocked = false;  // one has steps to start
  for (auto it = pending_.begin(); it != pending_.end();) {
    ExecutorWork& work = **it;
    const bool message = work.task_.message;
    if (!message && blocked) {
      ++it;
      continue;
    }
    if (!work.deadline_ && (first || message)) work.deadline_ = Deadline::after(work.task_.timeout);
    std::exception_ptr error;
    bool over = true;
    try {
      over = advance(work, check_deadlines);
    } catch (...) {
      error = std::current_exception();
    }
    if (over) {
      work.step_ = {};
      finished.emplace_back(*it, error);
      it = pending_.erase(it);
      continue;
    }
    if (!message) {
      first = false;
      blocked = work.started_ < work.task_.steps.size();
    }
    ++it;
  }
  count_.store(pending_.size());
}

// True when the work is over. Throws what it failed with.
bool Executor::advance(ExecutorWork& work, bool check_deadline) {
  Task& task = work.task_;
  if (!comm_) throw lockstep::Error(kClosed);
  const bool late = check_deadline && work.deadline_ && work.deadline_->expired();
  if (work.started_ == 0) {
    if (task.source) {
      const int source = task.source(*comm_);
      if (source < 0) {
        if (late) {
          throw Timeout(std::string(task.title) + " on rank " + std::to_string(rank_) + " waited " +
                        std::to_string(work.deadline_->timeout_seconds()) +
                        " s; no rank has sent it a message of that tag");
        }
        return false;
      }
      work.source_ = source;
    }
    work.step_ = task.steps[work.started_++](*comm_, task.site);
  }
  for (;;) {
    if (!work.step_.test()) {
      if (!late) return false;
      work.step_.wait(*work.deadline_);  // throws, and says who has not arrived
    }
    if (work.started_ == task.steps.size()) return true;
    work.step_ = task.steps[work.started_++](*comm_, task.site);
  }
}

// Futures last: a callback may wait for another one of these.
void Executor::complete(Finished& finished) {
  for (auto& [work, error] : finished) work->complete(error);
  for (auto& [work, error] : finished) {
    work->complete_future(std::unique_lock<std::mutex>(work->mutex_));
  }
}

void Executor::wake_helper(bool at_once) {
  if (!has_helper_.exchange(true)) {
    const auto lock = enter();
    if (!comm_) return;
    // It keeps the executor: the last reference may go in a callback that it runs.
    helper_ = std::thread([self = shared_from_this()] { self->help(); });
  }
  if (helper_sleeps_.exchange(false) || at_once) bell_.ring();
}

// Waking a thread costs more than a small operation, and most operations are soon waited for by
// their callers. So the helper, while there is traffic, looks every kLook whether it is needed, and
// sleeps soundly only after a quiet time.
void Executor::help() {
  constexpr auto kLook = microseconds(250);
  constexpr auto kQuiet = std::chrono::milliseconds(10);
  const auto needed = [this] { return count_ > 0 && drivers_ == 0; };
  auto last = Deadline::Clock::now();
  while (!stop_) {
    if (needed()) {
      drive([this] { return stop_ || drivers_ > 0 || count_ == 0; }, std::nullopt);
      last = Deadline::Clock::now();
    } else if (Deadline::Clock::now() - last < kQuiet) {
      bell_.wait_for(kLook);
    } else {
      helper_sleeps_ = true;
      if (!needed() && !stop_) bell_.wait();  // who makes it needed looks at the flag afterwards
      helper_sleeps_ = false;
      last = Deadline::Clock::now();
    }
  }
}

// A few turns before the kernel is asked to wait.
std::unique_lock<std::mutex> Executor::enter() {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  for (int turn = 0; !lock && turn < 200; ++turn) {
    ::sched_yield();
    if (lock.try_lock()) break;
  }
  if (!lock) lock.lock();
  return lock;
}

void Executor::abort(const std::string& reason) noexcept {
  const auto lock = enter();
  if (comm_) comm_->abort(reason);
}

void Executor::close() {
  {
    const auto lock = enter();
    if (!comm_) return;
  }
  // As short as an error must be quick to reach the other ranks, which see this one leave.
  drive([this] { return count_ == 0; }, Deadline::after(std::chrono::milliseconds(500)));
  std::thread helper;
  Finished finished;
  {
    const auto lock = enter();
    if (!comm_) return;
    stop_ = true;
    helper.swap(helper_);
    for (const auto& work : pending_) {
      work->step_ = {};
      finished.emplace_back(work, std::make_exception_ptr(lockstep::Error(kClosed)));
    }
    pending_.clear();
    count_ = 0;
    comm_.reset();
  }
  bell_.ring();
  if (helper.joinable()) {
    if (helper.get_id() == std::this_thread::get_id())
      helper.detach();
    else
      helper.join();
  }
  complete(finished);
}

}  // namespace lockstep::inline v0::python
