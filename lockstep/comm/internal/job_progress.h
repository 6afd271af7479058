// JobProgress: what the communicators of one rank that come from one init() know of each other. It
// holds their pending operations, so that a wait in one progresses the others, and how far each has
// come, so that ranks that wait for each other in different groups are detected. Not a public
// header.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/internal/deadlock_detector.h"
#include "lockstep/comm/internal/waited_ticks.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0 {

// Thread-safety: any thread.
class JobProgress {
 public:
  // A communicator.
  class Member {
   public:
    virtual ~Member() = default;
    // Progresses pending operations without blocking, or does nothing where a thread is inside.
    // Returns false if nothing is pending any more; the member is then skipped until it enters
    // again.
    virtual bool move_if_free() noexcept = 0;
    virtual const std::string& group() const noexcept = 0;  // its name, equal on all ranks
    virtual uint64_t called() const noexcept = 0;           // collectives so far
    // Its calls so far, from any thread.
    virtual CommunicatorStats counted() const noexcept = 0;

   private:
    friend class JobProgress;
    int users_ = 0;       // threads that are progressing it
    uint64_t turns_ = 0;  // counts its entries
  };

  // `rank` of the job, whose `store` all ranks share.
  JobProgress(std::shared_ptr<Store> store, int rank) : deadlocks_(std::move(store), rank) {}
  JobProgress(const JobProgress&) = delete;
  JobProgress& operator=(const JobProgress&) = delete;

  void add(Member& member);
  // When this returns no thread uses the member; it waits for those that do.
  void remove(Member& member) noexcept;

  // Registers that the member has pending operations, or that it has none any more. Calls
  // alternate.
  void enter(Member& member);
  void leave(Member& member) noexcept;
  // The number of members with pending operations.
  int entered() const noexcept { return entered_.load(std::memory_order_relaxed); }
  // Progresses all members except `self`; does nothing if another thread is doing so.
  void move_others(const Member& self) noexcept;

  // The calls of all members, also of those that were removed.
  CommunicatorStats stats();
  // Time spent in calls and waits of all members.
  WaitedTicks& waited() noexcept { return waited_; }

  // Notes that this thread calls one of the communicators.
  void note_thread(std::thread::id self) noexcept {
    if (thread_.load(std::memory_order_relaxed) != self) note_other_thread(self);
  }
  struct Look {
    std::string wrong;                      // as SiblingProgress::report_wait()
    std::chrono::milliseconds pause{8000};  // until the next call
  };
  // For a wait that has lasted for a while; `own` lacks the calls of the other communicators.
  Look report_wait(WaitState own, bool moved) noexcept;

 private:
  void count_moving() noexcept LOCKSTEP_REQUIRES(mutex_);  // called after moving_ has changed
  void note_other_thread(std::thread::id self) noexcept;

  WaitedTicks waited_;
  std::atomic<int> entered_{0};
  std::atomic<std::thread::id> thread_{};
  std::atomic<bool> several_threads_{false};
  Mutex mutex_;
  ConditionVariable left_;  // signalled when a member is no longer being progressed
  bool moving_others_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<Member*> members_ LOCKSTEP_GUARDED_BY(mutex_);
  CommunicatorStats of_removed_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Member*> moving_ LOCKSTEP_GUARDED_BY(mutex_);  // members with pending operations
  Mutex deadlocks_mutex_;
  DeadlockDetector deadlocks_ LOCKSTEP_GUARDED_BY(deadlocks_mutex_);
};

}  // namespace lockstep::inline v0
