// Runs a program to its end. Its output goes to a log, its progress bar to this terminal.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/signal_pipe.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::bench {

struct ProgramRun {
  std::vector<std::string> command;
  std::vector<std::string> env;  // NAME=value lines, all of them
  std::filesystem::path log;     // gets stdout and stderr without progress bars
  bool append = false;           // keeps the log's former lines
  // If it is interactive, the program's stderr is a terminal whose output appears on this one.
  Terminal terminal = {};
  // A signal that arrives here ends the program in order: by SIGTERM, and by SIGKILL if that takes
  // long or another signal follows. Null: signals act on this process alone.
  launch::SignalPipe* signals = nullptr;
};

struct ProgramEnd {
  std::optional<ExitStatus> status;     // nullopt: it passed the deadline or was stopped
  std::vector<std::string> last_lines;  // of stdout and stderr, without their line ends
  int stopped_by = 0;                   // the signal that stopped it; 0: none
};

// Blocks until the program has ended, and kills what it leaves in its process group.
// Throws: LaunchError if it cannot be started, SystemError if the log cannot be written.
ProgramEnd run_program(const ProgramRun& options, Deadline deadline);

// "exit code 3", "signal SIGKILL", "no end within 60 s", and the last line that is not empty.
std::string failure_text(const ProgramEnd& end, Deadline deadline);

}  // namespace lockstep::inline v0::bench
