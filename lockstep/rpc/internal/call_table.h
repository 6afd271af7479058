// CallTable: this process's calls that wait for their answers, by number, with their deadlines. Not
// a public header.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/mutex.h"
#include "lockstep/rpc/internal/timed_slots.h"
#include "lockstep/rpc/pending.h"

namespace lockstep::inline v0::rpc::internal {

// In steady state it allocates nothing.
// Thread-safety: any thread.
class CallTable {
 public:
  using Time = Deadline::Clock::time_point;

  // Gives the call, which has a deadline, its number. Returns true if the deadline is earlier than
  // all others here, so that the clock must be set anew.
  bool insert(const PendingPtr& call);
  // Removes it; null: there is no such call (any more), or, with `over`, it was not sent over that
  // link: an answer that comes over another is none of its.
  PendingPtr take(uint64_t number, const Link* over = nullptr);
  // Removes the calls of a lost link, or all.
  std::vector<PendingPtr> take_of(const Link& link);
  std::vector<PendingPtr> take_all();
  // Removes the calls whose deadline has passed.
  std::vector<PendingPtr> take_late(Time now);
  // The earliest deadline.
  std::optional<Time> next_end();

  // Waits until it is empty. Returns false at the deadline.
  bool wait_empty(Deadline deadline);
  std::vector<PendingPtr> list() const;

 private:
  // Removes the calls that `take` selects, and wakes threads that wait for an empty table.
  template <typename Take>
  auto taken(Take take);

  mutable Mutex mutex_;
  ConditionVariable emptied_;
  TimedSlots<PendingPtr> calls_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline v0::rpc::internal
