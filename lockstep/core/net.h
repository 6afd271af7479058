// Sockets with deadlines. Addresses are numeric (127.0.0.1, ::1); names are resolved only by
// resolve().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/export.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

class SystemError;

// Where a socket listens, or connects to.
struct LOCKSTEP_API HostPort {
  std::string host;
  uint16_t port = 0;
  std::string to_string() const;  // "127.0.0.1:29500", "[::1]:29500"
};

// "host:port" or "[v6]:port".
// Throws: InvalidArgument that quotes the text.
LOCKSTEP_API HostPort parse_host_port(const std::string& text);

// The host as a numeric address; numeric input is returned unchanged.
// Throws: InvalidArgument that names the host.
LOCKSTEP_API std::string resolve(const std::string& host);

// Listens on `address` (port 0: the system chooses). Close-on-exec and non-blocking.
// Throws: SystemError; for a port in use the message names the address and, where /proc tells, the
// process that holds it.
LOCKSTEP_API UniqueFd listen_tcp(const HostPort& address, int backlog = 512);
// " (held by process 123, name)" for the process that listens on `port` of this host, where /proc
// shows it, otherwise "".
LOCKSTEP_API std::string port_owner(uint16_t port);
// The local address of a bound socket.
LOCKSTEP_API HostPort local_address(int fd);

// The other end's address of a connected TCP socket.
// Throws: SystemError.
LOCKSTEP_API HostPort peer_address(int fd);
// Sends small messages at once (TCP_NODELAY), for accepted sockets. connect_tcp() does it itself.
LOCKSTEP_API void set_no_delay(int fd);

// Whether connecting to a numeric address, which failed with `error`, may succeed later: no process
// listens yet, ports or descriptors are short for a moment, or the network is still being set up
// (the loopback interface always is). An address that cannot be connected to, or is not allowed, is
// permanent.
LOCKSTEP_API bool may_connect_later(const HostPort& address, int error);
// For a permanent failure: the address, the reason, and where to look.
LOCKSTEP_API SystemError connect_error(const HostPort& address, int error);

// Connects, retrying while the server is not up yet, until the deadline. The socket is non-blocking
// with TCP_NODELAY.
// Throws: Timeout that names the address and the last error, and connect_error() at once.
LOCKSTEP_API UniqueFd connect_tcp(const HostPort& address, Deadline deadline);

// Waits until `fd` is ready for `events` (POLLIN, POLLOUT).
// Throws: Timeout.
LOCKSTEP_API void wait_ready(int fd, short events, Deadline deadline, const char* what);

// Complete transfers on a non-blocking stream socket. Throw PeerLost (rank -1) when the other end
// is closed, Timeout at the deadline, SystemError otherwise. Never raise SIGPIPE.
LOCKSTEP_API void read_exact(int fd, void* data, size_t size, Deadline deadline);
LOCKSTEP_API void write_exact(int fd, const void* data, size_t size, Deadline deadline);

}  // namespace lockstep::inline v0
