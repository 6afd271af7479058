// LiveBytes: the bytes of tensors that a piece of code allocates and does not free.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/core/export.h"

namespace c10 {
class DebugInfoGuard;
}

namespace lockstep::inline v0 {

// While it lives, it counts the bytes that this thread's tensors allocate from libtorch's
// allocators, on any device, and those of them that are freed; and memory that a communicator gives
// (symmetric_empty(); of shared_empty() this rank's share). Several may live at once, the later ones
// within the earlier. It counts nothing where a libtorch profiler already counts memory on this
// thread.
// Cost: some hundred nanoseconds per allocation.
class LOCKSTEP_API LiveBytes {
 public:
  LiveBytes();
  ~LiveBytes();
  LiveBytes(const LiveBytes&) = delete;
  LiveBytes& operator=(const LiveBytes&) = delete;

  int64_t now() const;   // allocated since the beginning and not freed
  int64_t most() const;  // the maximum of that; with several, since the first one
  // The maximum begins anew, for all of them.
  void forget_most();

 private:
  friend class AllocationLog;
  class Counter;
  std::shared_ptr<Counter> counter_;
  int64_t before_ = 0;  // of an outer one
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace lockstep::inline v0
