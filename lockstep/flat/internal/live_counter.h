// LiveBytes' counter, which libtorch tells of every allocation.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "lockstep/core/mutex.h"
#include "lockstep/flat/internal/allocation_record.h"
#include "lockstep/flat/live_bytes.h"

namespace lockstep::inline v0 {

// libtorch passes it on to the threads that share an operation.
class LiveBytes::Counter final : public c10::MemoryReportingInfoBase,
                                 public std::enable_shared_from_this<LiveBytes::Counter> {
 public:
  void reportMemoryUsage(void* memory, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    if (records_.load(std::memory_order_acquire)) {
      if (const auto record = this->record()) record->add(memory, bytes);
    }
    const int64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t most = most_.load(std::memory_order_relaxed);
    while (live > most && !most_.compare_exchange_weak(most, live, std::memory_order_relaxed)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live() const { return live_.load(std::memory_order_relaxed); }
  int64_t most() const { return most_.load(std::memory_order_relaxed); }
  void forget_most() { most_.store(live(), std::memory_order_relaxed); }

  // Whether it has begun: not where there is a record already.
  bool begin_record() {
    const MutexLock lock(mutex_);
    if (record_) return false;
    record_ = std::make_shared<internal::AllocationRecord>();
    records_.store(true, std::memory_order_release);
    return true;
  }
  void end_record() {
    const MutexLock lock(mutex_);
    records_.store(false, std::memory_order_release);
    record_.reset();
  }
  std::shared_ptr<internal::AllocationRecord> record() const {
    const MutexLock lock(mutex_);
    return record_;
  }

 private:
  std::atomic<int64_t> live_{0}, most_{0};
  std::atomic<bool> records_{false};
  mutable Mutex mutex_;
  std::shared_ptr<internal::AllocationRecord> record_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::inline v0
