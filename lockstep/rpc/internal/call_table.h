// CallTable: this process's calls that wait for their answers, by number, and when each has to end. Not a public header.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/internal/timed_slots.h"
#include "lockstep/rpc/pending.h"

namespace lockstep::rpc::internal {

// For all threads. In steady state it allocates nothing.
class CallTable {
 public:
  using Time = Deadline::Clock::time_point;

  // Gives the call, which has an end, its number. True: it ends before all that are here, so whoever keeps the clock must look again.
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

  // Waits until there is none. False: not before the deadline.
  bool wait_empty(Deadline deadline);
  std::vector<PendingPtr> list() const;

 private:
  // Takes what `take` gives, and tells who waits for the end of all.
  template <typename Take>
  auto taken(Take take);

  mutable Mutex mutex_;
  ConditionVariable emptied_;
  TimedSlots<PendingPtr> calls_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rpc::internal
