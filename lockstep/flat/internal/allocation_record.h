// AllocationRecord: the record of an AllocationLog. Any thread may add to it.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "lockstep/core/mutex.h"
#include "lockstep/flat/allocation_trace.h"

namespace lockstep::inline v0::internal {

class AllocationRecord {
 public:
  // While it leaves out, allocations are not added.
  void leave_out(bool on) {
    const MutexLock lock(mutex_);
    leaves_out_ = on;
  }
  void add(const void* memory, int64_t bytes) {
    const MutexLock lock(mutex_);
    if (bytes > 0 && leaves_out_) return;
    AllocationEvent event{.bytes = bytes};
    if (bytes < 0) {
      const auto found = alive_.find(memory);
      if (found == alive_.end()) return;  // older than the record
      event.of = static_cast<int64_t>(found->second);
      alive_.erase(found);
    } else {
      alive_[memory] = trace_.size();
    }
    trace_.push_back(event);
  }
  AllocationTrace trace() const {
    const MutexLock lock(mutex_);
    return trace_;
  }
  std::optional<size_t> allocation_of(const void* memory) const {
    const MutexLock lock(mutex_);
    const auto found = alive_.find(memory);
    return found == alive_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  mutable Mutex mutex_;
  bool leaves_out_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  AllocationTrace trace_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unordered_map<const void*, size_t> alive_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline v0::internal
