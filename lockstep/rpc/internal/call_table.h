// CallTable: this process's calls that wait for their answers, by number, and when each has to end. Not a public header.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/pending.h"

namespace lockstep::rpc::internal {

// For all threads. In steady state it allocates nothing.
class CallTable {
 public:
  using Time = Deadline::Clock::time_point;

  // Gives the call its number. True: it ends before all that are here, so whoever keeps the clock must look again.
  bool insert(const PendingPtr& call);
  // Takes it out; null: no such call (any more).
  PendingPtr take(uint64_t number);
  // Takes out those of a lost link; all.
  std::vector<PendingPtr> take_of(const Link& link);
  std::vector<PendingPtr> take_all();
  // Takes out those whose time has come.
  std::vector<PendingPtr> take_late(Time now);
  // When the first one ends.
  std::optional<Time> next_end();

  size_t size() const;
  // Waits until there is none. False: not before the deadline.
  bool wait_empty(Deadline deadline);
  std::vector<PendingPtr> list() const;

 private:
  struct Slot {
    PendingPtr call;
    uint32_t generation = 1;
  };
  struct End {
    Time time;
    uint64_t number;
    bool operator>(const End& other) const { return time > other.time; }
  };
  PendingPtr take_slot(size_t index) LOCKSTEP_REQUIRES(mutex_);
  bool living(uint64_t number) const LOCKSTEP_REQUIRES(mutex_);
  void drop_dead_ends() LOCKSTEP_REQUIRES(mutex_);
  template <typename Wanted>
  std::vector<PendingPtr> take_if(Wanted wanted);

  mutable Mutex mutex_;
  ConditionVariable emptied_;
  std::vector<Slot> slots_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<End> ends_ LOCKSTEP_GUARDED_BY(
      mutex_);  // a heap, the earliest first; calls that are gone stay until then
  size_t size_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::rpc::internal
