// The port for programs whose rank 0 opens a store of its own (torch's TCPStore, through
// MASTER_PORT).
#pragma once

#include <optional>

#include "lockstep/core/net.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::launch {

// Keeps a port from being assigned to others, while a server that sets SO_REUSEADDR (as torch's and
// ours do) can still take it: the socket is bound, with SO_REUSEADDR, to the wildcard address, and
// does not listen.
class PortReservation {
 public:
  // Reserves `port`, or a free one.
  // Throws: LaunchError that names the port and its owner when a process listens on it.
  explicit PortReservation(std::optional<int> port);

  uint16_t port() const { return port_; }

 private:
  UniqueFd socket_;
  uint16_t port_ = 0;
};

}  // namespace lockstep::inline v0::launch
