// LogNeverWaits: for processes that serve others and must not stand still with whoever reads their stderr.
#pragma once

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

}  // namespace lockstep
