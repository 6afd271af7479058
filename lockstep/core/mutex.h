// Mutex, MutexLock, ConditionVariable: those of the standard library, with annotations by which
// clang checks which thread holds which lock (thread_annotations.h).
//
// Write the condition of a condition variable as a loop, since the analysis does not look into
// lambdas:
//
//   MutexLock lock(mutex_);
//   while (!ready_) changed_.wait(lock);
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "lockstep/core/export.h"
#include "lockstep/core/thread_annotations.h"

namespace lockstep::inline v0 {

class LOCKSTEP_API LOCKSTEP_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // Those of std::mutex.
  void lock() LOCKSTEP_ACQUIRE() { mutex_.lock(); }
  bool try_lock() LOCKSTEP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }  // without waiting
  void unlock() LOCKSTEP_RELEASE() { mutex_.unlock(); }  // by the thread that locked it

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

// Holds the mutex for its lifetime, except between unlock() and lock().
class LOCKSTEP_API LOCKSTEP_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LOCKSTEP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() LOCKSTEP_RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // Releases the mutex before the end of the lifetime.
  void unlock() LOCKSTEP_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  // Takes it again.
  void lock() LOCKSTEP_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  friend class ConditionVariable;
  Mutex& mutex_;
  bool held_ = true;
};

// A wait releases the lock meanwhile, and may end spuriously.
class LOCKSTEP_API ConditionVariable {
 public:
  void notify_one() noexcept { changed_.notify_one(); }  // wakes one thread
  void notify_all() noexcept { changed_.notify_all(); }  // wakes all threads

  // Waits without a deadline.
  void wait(MutexLock& lock) {
    Native native(lock);
    changed_.wait(native.lock);
  }
  // Returns false at the deadline.
  template <typename Clock, typename Duration>
  bool wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& time) {
    Native native(lock);
    return changed_.wait_until(native.lock, time) == std::cv_status::no_timeout;
  }

 private:
  // The same lock as the standard library's type.
  struct Native {
    explicit Native(MutexLock& held) : lock(held.mutex_.mutex_, std::adopt_lock) {}
    ~Native() { lock.release(); }
    Native(const Native&) = delete;
    Native& operator=(const Native&) = delete;
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable changed_;
};

}  // namespace lockstep::inline v0
