// JobProgress: what the communicators of one rank that come from one init() know of each other: what
// is under way in them, so that a wait in one moves the others, and how far each has come, so that
// ranks which wait for each other in different groups find out. Not a public header.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/standstill.h"
#include "lockstep/comm/waited_ticks.h"
#include "lockstep/core/mutex.h"

namespace lockstep {

// From any thread.
class JobProgress {
 public:
  // A communicator.
  class Member {
   public:
    virtual ~Member() = default;
    // Moves what is under way without blocking, or does nothing where a thread is inside. False if
    // nothing is under way any more: it is left then, until it enters again.
    virtual bool move_if_free() noexcept = 0;
    virtual const std::string& group() const noexcept = 0;  // its name, equal on all ranks
    virtual uint64_t called() const noexcept = 0;           // collectives so far

   private:
    friend class JobProgress;
    int users_ = 0;       // who move it now
    uint64_t turns_ = 0;  // how often it has entered
  };

  // `rank` of the job, whose `store` all ranks share.
  JobProgress(std::shared_ptr<Store> store, int rank) : standstill_(std::move(store), rank) {}
  JobProgress(const JobProgress&) = delete;
  JobProgress& operator=(const JobProgress&) = delete;

  void add(Member& member);
  // When this returns nobody uses it; waits for who does.
  void remove(Member& member) noexcept;

  // It has something under way; has nothing any more. In turns.
  void enter(Member& member);
  void leave(Member& member) noexcept;
  // How many have something under way.
  int entered() const noexcept { return entered_.load(std::memory_order_relaxed); }
  // Moves all but `self`; nothing if another thread is at it.
  void move_others(const Member& self) noexcept;

  // In calls and waits of all of them.
  WaitedTicks& waited() noexcept { return waited_; }

  // This thread calls one of the communicators.
  void note_thread(std::thread::id self) noexcept {
    if (thread_.load(std::memory_order_relaxed) != self) note_other_thread(self);
  }
  struct Look {
    std::string wrong;                      // as Elsewhere::stand()
    std::chrono::milliseconds pause{8000};  // until the next
  };
  // Of a wait that has lasted for a while: `own` lacks what the others have called.
  Look stand(Standing own, bool moved) noexcept;

 private:
  void count_moving() noexcept LOCKSTEP_REQUIRES(mutex_);  // after moving_ has changed
  void note_other_thread(std::thread::id self) noexcept;

  WaitedTicks waited_;
  std::atomic<int> entered_{0};
  std::atomic<std::thread::id> thread_{};
  std::atomic<bool> several_threads_{false};
  Mutex mutex_;
  ConditionVariable left_;  // a member that was moved is not any more
  bool moving_others_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<Member*> members_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Member*> moving_ LOCKSTEP_GUARDED_BY(mutex_);  // with something under way
  Mutex standstill_mutex_;
  Standstill standstill_ LOCKSTEP_GUARDED_BY(standstill_mutex_);
};

}  // namespace lockstep
