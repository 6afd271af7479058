// Timers: what is to run at which time. Not a public header.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/rpc/internal/reactor.h"

namespace lockstep::rpc::internal {

// A heap; what is cancelled leaves its entry behind until its time comes or most entries are such.
// Not thread-safe; runs nothing itself.
class Timers {
 public:
  using Time = Reactor::Clock::time_point;

  // -> the number for cancel(), never 0.
  uint64_t add(Time when, Task task);
  // The task, if it is still there; else null.
  Task cancel(uint64_t timer);
  // The time of the earliest.
  std::optional<Time> next();
  // The earliest that is due by `now`; null: none.
  Task take_due(Time now);
  // All that are left.
  std::vector<Task> take_all();

 private:
  struct Entry {
    Time when;
    uint64_t timer;
    bool operator<(const Entry& other) const {
      return when > other.when;
    }  // a heap's top is the greatest
  };
  struct Slot {
    uint32_t age = 1;  // of the entry that it belongs to
    Task task;
  };
  Slot* slot_of(uint64_t timer);
  Task empty(uint64_t timer);
  void drop_stale();

  std::vector<Entry> heap_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  size_t live_ = 0;
};

}  // namespace lockstep::rpc::internal
