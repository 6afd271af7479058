// Options of calls, for Agent::to() and RRef::with().
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace lockstep::inline v0::rpc {

// The options of a call.
struct CallOptions {
  // Otherwise AgentOptions::timeout; never beyond the deadline of the call that is being served.
  std::optional<std::chrono::nanoseconds> timeout = {};
  // Calls of this process to one peer with the same number, other than 0, run one after another, in
  // the order in which they were made. Others run concurrently.
  uint64_t order = 0;
};

}  // namespace lockstep::inline v0::rpc
