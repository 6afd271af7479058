// Peer: a process that has an agent. Not for programs.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::inline v0::rpc::internal {

// The identity of a process.
struct Peer {
  std::string name;
  uint64_t incarnation = 0;  // random; differs after a restart
  int64_t pid = 0;
  std::string host;          // for messages: "host a, process 123"
  std::string str() const {  // "'ps' (process 123 on host a)"
    return "'" + name + "' (process " + std::to_string(pid) + " on host " + host + ")";
  }
};

}  // namespace lockstep::inline v0::rpc::internal
