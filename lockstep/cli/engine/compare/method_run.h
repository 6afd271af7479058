// Runs a program to its end: what it writes goes to a log, its progress bar to this terminal.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/report/terminal.h"

namespace lockstep::engine {

struct MethodRunOptions {
  std::vector<std::string> command;
  std::vector<std::string> env;  // NAME=value lines, all of them
  std::filesystem::path log;     // replaced; gets stdout and stderr, bars left out
  Terminal terminal = {};        // interactive: the program's stderr is a terminal, shown on ours
};

struct MethodEnd {
  std::optional<ExitStatus> status;     // nothing: it passed the deadline, and was ended
  std::vector<std::string> last_lines;  // of stdout and stderr, without their line ends
};

// Blocks until the program has ended. Its process group goes with it. Throws LaunchError if it
// cannot be started, SystemError if the log cannot be written.
MethodEnd run_method(const MethodRunOptions& options, Deadline deadline);

// "exit code 3", "signal SIGKILL", "no end within 60 s", and the last line that is not empty.
std::string failure_text(const MethodEnd& end, Deadline deadline);

}  // namespace lockstep::engine
