// A group whose ranks are threads of this process. Milliseconds to start.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Runs fn(comm) on `size` threads, one a rank, backend "local". Returns when all have ended. If a
// rank throws, the others' waits end too, and the exception of the rank that failed first is thrown
// here. `timeout`: of every wait of the communicators. `slot_bytes`, where it is not 0: everything
// goes in rounds of at most so many bytes, as long tensors do between processes; else straight from
// thread to thread.
LOCKSTEP_API void run_ranks_as_threads(int size, const std::function<void(Communicator&)>& fn,
                                       std::chrono::nanoseconds timeout = std::chrono::seconds(30),
                                       uint32_t slot_bytes = 0);

}  // namespace lockstep::inline v0
