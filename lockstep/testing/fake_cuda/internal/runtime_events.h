// RuntimeEvent: an event of the CUDA runtime, maybe one that processes share. Not a public header.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/core/mutex.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"
#include "lockstep/testing/fake_cuda/internal/runtime_tables.h"

namespace lockstep::inline v0::testing::fake {

// Any thread may call.
class RuntimeEvent {
 public:
  // How often it was recorded, and which of these is over: in memory of all processes that have it.
  struct Shared {
    std::atomic<uint64_t> recorded;
    std::atomic<uint64_t> over;
  };

  RuntimeEvent() = default;  // of this process alone
  RuntimeEvent(Shared* shared, const IpcHandle& handle) : shared_(shared), handle_(handle) {}

  // What comes next on the stream comes after what the event was recorded behind.
  void hold(StreamSlot stream);
  void record(StreamSlot stream);
  bool query();
  void synchronize();

  // Nullptr for one of this process alone.
  const IpcHandle* handle() const { return shared_ != nullptr ? &handle_ : nullptr; }

 private:
  struct Recorded {
    VectorClock clock;
    StreamSlot stream = 0;
  };
  Recorded recorded() const;
  bool over() const;

  Shared* shared_ = nullptr;
  IpcHandle handle_{};
  mutable Mutex mutex_;
  Recorded recorded_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Nullptr where the system has no memory for one, or the other process is gone.
RuntimeEvent* make_shared_event();
RuntimeEvent* open_shared_event(const IpcHandle& handle);

}  // namespace lockstep::inline v0::testing::fake
