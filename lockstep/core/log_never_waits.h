// LogNeverWaits: for processes that serve others and must not stand still with whoever reads their output.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace lockstep {

// While one lives, log() waits for no reader: a line for which a pipe, a socket or a terminal has no room now is dropped,
// and the next one that is written says how many were. Of all threads; objects may overlap.
class LogNeverWaits {
 public:
  LogNeverWaits() noexcept;
  ~LogNeverWaits();
  LogNeverWaits(const LogNeverWaits&) = delete;
  LogNeverWaits& operator=(const LogNeverWaits&) = delete;
};

// Writes as much of `text` as `fd` (a pipe, a socket, a terminal or a file) takes now; all threads that write so take turns,
// so that none fills the room which another has seen. How much that was; -1 with errno where it was nothing, EAGAIN where
// there is no room. What other processes write to the same pipe meanwhile it cannot know.
ssize_t write_if_room(int fd, std::string_view text) noexcept;

}  // namespace lockstep
