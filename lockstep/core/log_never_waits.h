// LogNeverWaits: for processes that serve others and must not block on the reader of their output.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace lockstep::inline v0 {

// While one lives, log() never blocks: a line for which a pipe, a socket or a terminal has no room
// now is dropped, and the next written line says how many were. It applies to all threads; objects
// may overlap.
class LogNeverWaits {
 public:
  LogNeverWaits() noexcept;
  ~LogNeverWaits();
  LogNeverWaits(const LogNeverWaits&) = delete;
  LogNeverWaits& operator=(const LogNeverWaits&) = delete;
};

// Writes as much of `text` as `fd` (a pipe, a socket, a terminal or a file) takes now; all threads
// that write in this way take turns, so that none uses the room that another has seen. Returns the
// number of bytes; -1 with errno if none, EAGAIN where there is no room. It cannot account for
// other processes that write to the same pipe meanwhile.
ssize_t write_if_room(int fd, std::string_view text) noexcept;

}  // namespace lockstep::inline v0
