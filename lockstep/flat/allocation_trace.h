// The allocations of a piece of code, in order: what it takes at once, and what it will take of
// more samples.
//
//   AllocationLog log;
//   work();
//   const AllocationTrace trace = log.trace();  // most_at_once(trace) is what LiveBytes counts
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/flat/live_bytes.h"

namespace lockstep::inline v0 {

// An allocation, or the end of one of the same trace.
struct AllocationEvent {
  static constexpr int64_t kNone = -1;
  int64_t bytes = 0;   // allocated, or, below 0, freed
  int64_t of = kNone;  // the event that allocated what is freed; kNone: this one allocates
  friend bool operator==(const AllocationEvent&, const AllocationEvent&) = default;
};
// The events of a piece of code, in the order of time.
using AllocationTrace = std::vector<AllocationEvent>;

// The largest sum of a beginning of the trace, 0 or more. Pure.
LOCKSTEP_API int64_t most_at_once(const AllocationTrace& trace);
// The events of allocations that are never freed, ascending. Pure.
LOCKSTEP_API std::vector<size_t> left_over(const AllocationTrace& trace);
// The trace without these allocations. The events stay, with 0 bytes. Pure.
LOCKSTEP_API AllocationTrace without(AllocationTrace trace, const std::vector<size_t>& allocations);

// The trace of the same code with `samples`, from those with `few` and `more` samples: every size is
// on the line through both of its own, rounded up. nullopt: the traces have not the same events in
// the same order, so that sizes decide about them. Pure.
// Requires: few < more.
LOCKSTEP_API std::optional<AllocationTrace> extended(const AllocationTrace& of_few, int64_t few,
                                                     const AllocationTrace& of_more, int64_t more,
                                                     int64_t samples);
// The value on that line, rounded up. Pure.
LOCKSTEP_API int64_t on_line(int64_t of_few, int64_t few, int64_t of_more, int64_t more,
                             int64_t samples);

// While it lives, it records the allocations that LiveBytes counts, of this thread and of those that
// libtorch lets work for it. That memory from before is freed is not recorded. One at a time on a
// thread; a LiveBytes may live within it, or around it. Where a libtorch profiler counts, it records
// nothing.
// Cost: some hundred nanoseconds per allocation.
class LOCKSTEP_API AllocationLog {
 public:
  // Throws: InvalidArgument where another one lives on this thread.
  AllocationLog();
  ~AllocationLog();
  AllocationLog(const AllocationLog&) = delete;
  AllocationLog& operator=(const AllocationLog&) = delete;

  int64_t now() const { return live_.now(); }  // allocated since the beginning and not freed
  AllocationTrace trace() const;               // up to now
  // While true, what is allocated is left out, such as batches that come between two computations.
  void leave_out(bool on);
  // The event that has allocated the tensor's memory; nullopt if the log has none.
  std::optional<size_t> allocation_of(const at::Tensor& tensor) const;

 private:
  LiveBytes live_;
};

}  // namespace lockstep::inline v0
