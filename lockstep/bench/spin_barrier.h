// SpinBarrier: a barrier for measurements, which ranks leave within a fraction of a microsecond of
// each other.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/cache_line.h"

namespace lockstep::inline v0::bench {

// Ranks of one host spin on a page that they share, or yield where they are more than the
// processors; across hosts it is the communicator's barrier.
class SpinBarrier {
 public:
  // Requires: `comm` outlives the barrier.
  // Collective: all ranks call it.
  explicit SpinBarrier(Communicator& comm);
  ~SpinBarrier();
  SpinBarrier(const SpinBarrier&) = delete;
  SpinBarrier& operator=(const SpinBarrier&) = delete;

  // Returns once all ranks have called.
  // Throws: Timeout after the communicator's time-out.
  void pass();

 private:
  struct Page {
    alignas(kLinePair) std::atomic<int32_t> arrived;
    alignas(kLinePair) std::atomic<int32_t> opened;  // number of openings
  };
  Communicator& comm_;
  Page* page_ = nullptr;  // null across hosts
  bool spin_ = true;
};

}  // namespace lockstep::inline v0::bench
