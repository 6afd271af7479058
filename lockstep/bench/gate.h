// Gate: a barrier for measurements, which ranks leave within a fraction of a microsecond of each
// other.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/comm/communicator.h"

namespace lockstep::bench {

// Ranks of one host spin on a page that they share, or yield where they are more than the
// processors; across hosts the gate is the communicator's barrier.
class Gate {
 public:
  // Requires: `comm` outlives the gate.
  // Collective: all ranks call it.
  explicit Gate(Communicator& comm);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Returns once all ranks have called.
  // Throws: Timeout after the communicator's time-out.
  void pass();

 private:
  struct Page {
    alignas(128) std::atomic<int32_t> arrived;
    alignas(128) std::atomic<int32_t> opened;  // number of openings
  };
  Communicator& comm_;
  Page* page_ = nullptr;  // null across hosts
  bool spin_ = true;
};

}  // namespace lockstep::bench
