// run_threads: a group whose ranks are threads of this process. Milliseconds to start; works under
// sanitizers and debuggers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0::testing {

// The options of run_threads().
struct LOCKSTEP_API ThreadOptions {
  std::chrono::nanoseconds timeout =
      std::chrono::seconds(30);  // of every wait of the communicators
  // Not 0: everything goes in rounds of at most so many bytes, as long tensors do between
  // processes; else straight from thread to thread.
  uint32_t slot_bytes = 0;
};

// Runs fn(comm) on `size` threads, one a rank, backend "local". Returns when all have ended. If a
// rank throws, the others' waits end too, and the exception of the rank that failed first is thrown
// here.
LOCKSTEP_API void run_threads(int size, const std::function<void(Communicator&)>& fn,
                              ThreadOptions options = {});

}  // namespace lockstep::inline v0::testing
