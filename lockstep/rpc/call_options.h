// How calls are made, those of Agent::to() and of RRef::with().
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace lockstep::rpc {

struct CallOptions {
  std::optional<std::chrono::nanoseconds> timeout =
      {};  // else AgentOptions::timeout; never beyond the caller's own call
  // Calls of this process to one peer with the same number, other than 0, run one after another, in the order in which they
  // were made. Others run side by side.
  uint64_t order = 0;
};

}  // namespace lockstep::rpc
