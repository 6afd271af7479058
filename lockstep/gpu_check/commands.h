// Other programs, with a time of their own.
#pragma once

#include <string>
#include <vector>

namespace lockstep::inline v0::gpu_check {

struct CommandOutput {
  std::string text;   // what it wrote, on both streams
  std::string wrong;  // "" where it ended with 0; else how it ended, or why it did not start

  bool ok() const { return wrong.empty(); }
};
// Ends it, and whom it started, after so many seconds. Throws SystemError alone.
CommandOutput run_command(const std::vector<std::string>& command, double seconds);

}  // namespace lockstep::inline v0::gpu_check
