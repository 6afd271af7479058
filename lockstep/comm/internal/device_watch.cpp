#include "lockstep/comm/internal/device_watch.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/core/mutex.h"

namespace lockstep::inline v0 {
namespace {

// The time between two looks at the device: short at first, because most operations are short.
constexpr std::chrono::nanoseconds kFirstNap = std::chrono::microseconds(50);
constexpr std::chrono::nanoseconds kLongestNap = std::chrono::milliseconds(1);

// Reachable, so that leak checkers do not report it.
struct NotGivenBack {
  Mutex mutex;
  std::deque<DeviceWatch::Operation> operations LOCKSTEP_GUARDED_BY(mutex);
};

}  // namespace

// The state that the watch and its thread share. The thread outlives the watch where the last
// operation's memory kept the watch's owner alive.
class DeviceWatch::State {
 public:
  explicit State(Look look) : look_(std::move(look)) {}

  static void add(const std::shared_ptr<State>& self, Operation operation) {
    const MutexLock lock(self->mutex_);
    self->operations_.push_back(std::move(operation));
    if (!self->thread_.joinable()) self->thread_ = std::thread([self] { self->run(); });
    self->changed_.notify_all();
  }

  void drain() {
    // No other thread would check.
    const bool own = watches();
    std::chrono::nanoseconds nap = kFirstNap;
    while (wait_for_one(/*sleep=*/!own)) {
      if (own) turn(nap);
    }
  }

  void each_call(const std::function<void(uint64_t)>& found) const {
    const MutexLock lock(mutex_);
    for (const Operation& operation : operations_) found(operation.call);
  }

  void stop() noexcept {
    std::thread thread;
    {
      const MutexLock lock(mutex_);
      stopped_ = true;
      thread.swap(thread_);
      changed_.notify_all();
    }
    if (thread.joinable()) {
      if (thread.get_id() == std::this_thread::get_id())
        thread.detach();
      else
        thread.join();
    }
    const MutexLock lock(mutex_);
    for (Operation& operation : operations_) operation.request.reset();
  }

  // Called after stop(). Frees the memory that the device no longer uses.
  void forget() noexcept {
    static auto* const kept = new NotGivenBack();
    std::deque<Operation> over;  // freed without the lock
    const MutexLock kept_lock(kept->mutex);
    const MutexLock lock(mutex_);
    std::move(operations_.begin(), operations_.end(), std::back_inserter(kept->operations));
    operations_.clear();
    for (Operation& operation : kept->operations) {
      if (operation.tail->over()) over.push_back(std::move(operation));
    }
    std::erase_if(kept->operations, [](const Operation& moved) { return moved.tail == nullptr; });
  }

 private:
  void run() {
    std::chrono::nanoseconds nap = kFirstNap;
    while (true) {
      {
        MutexLock lock(mutex_);
        if (operations_.empty()) nap = kFirstNap;
        while (!stopped_ && operations_.empty()) changed_.wait(lock);
        if (stopped_) return;
      }
      turn(nap);
    }
  }

  bool watches() {
    const MutexLock lock(mutex_);
    return thread_.get_id() == std::this_thread::get_id();
  }

  // Returns false if there is nothing left to drain. Otherwise sleeps until something changes, if
  // `sleep` says so.
  bool wait_for_one(bool sleep) {
    MutexLock lock(mutex_);
    if (operations_.empty() || failed_) return false;
    if (sleep) changed_.wait(lock);
    return true;
  }

  // Called by the watch's thread while there are operations: checks the first one, and frees it or
  // waits a little.
  void turn(std::chrono::nanoseconds& nap) LOCKSTEP_EXCLUDES(mutex_) {
    Operation* front = nullptr;  // remains valid: only this thread removes it
    bool failed = false;
    {
      const MutexLock lock(mutex_);
      front = &operations_.front();
      failed = failed_;
    }
    const bool over = failed ? front->tail->over() : look(*front);
    std::optional<Operation> done;  // may hold the last reference to arbitrary objects
    MutexLock lock(mutex_);
    if (stopped_) return;
    if (!over) {
      changed_.wait_until(lock, std::chrono::steady_clock::now() + nap);
      nap = std::min(nap * 2, kLongestNap);
      return;
    }
    nap = kFirstNap;
    done = std::move(operations_.front());
    operations_.pop_front();
    changed_.notify_all();
  }

  bool look(Operation& front) noexcept {
    try {
      return look_(front);
    } catch (...) {  // the check has told all observers
    }
    const MutexLock lock(mutex_);
    failed_ = true;
    changed_.notify_all();
    return false;
  }

  const Look look_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  // A deque, so that the front keeps its address while others are added.
  std::deque<Operation> operations_ LOCKSTEP_GUARDED_BY(mutex_);
  bool failed_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool stopped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_ LOCKSTEP_GUARDED_BY(mutex_);
};

DeviceWatch::DeviceWatch(Look look) : state_(std::make_shared<State>(std::move(look))) {}

DeviceWatch::~DeviceWatch() {
  stop();
  state_->forget();
}

void DeviceWatch::add(Operation operation) {
  State::add(state_, std::move(operation));
}

void DeviceWatch::drain() {
  state_->drain();
}

void DeviceWatch::each_call(const std::function<void(uint64_t)>& found) const {
  state_->each_call(found);
}

void DeviceWatch::stop() noexcept {
  state_->stop();
}

}  // namespace lockstep::inline v0
