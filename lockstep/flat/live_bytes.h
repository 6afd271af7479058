// LiveBytes: the bytes of tensors that a piece of code leaves behind.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace c10 {
class DebugInfoGuard;
}

namespace lockstep {

// While it lives, what this thread's tensors allocate from libtorch's allocators, on any device, is counted, and
// what of that is freed again. Shared and symmetric memory is not among it. Costs some hundred nanoseconds an
// allocation. Several may live at once, the later ones within the earlier. Counts nothing where a profiler of
// libtorch's counts memory on this thread already.
class LiveBytes {
 public:
  LiveBytes();
  ~LiveBytes();
  LiveBytes(const LiveBytes&) = delete;
  LiveBytes& operator=(const LiveBytes&) = delete;

  int64_t now() const;   // allocated since the beginning, and not freed
  int64_t most() const;  // that this has been, or of the first of several

 private:
  class Counter;
  std::shared_ptr<Counter> counter_;
  int64_t before_ = 0;  // of one that counted already
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace lockstep
