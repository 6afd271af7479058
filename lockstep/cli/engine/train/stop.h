// The messages of a training run that ends before its time, and the command that continues it.
#pragma once

#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::engine {

struct StartedRun {
  std::filesystem::path output;
  Arguments arguments;  // `lockstep train`'s
  bool resumed = false;
  std::string command;  // the user's word for lockstep
  std::filesystem::file_time_type started = std::filesystem::file_time_type::clock::now();
};

// The command line, for a shell, that continues from the last checkpoint. Pure.
std::string resume_command(const StartedRun& run);

// "lockstep train: stopped by SIGINT; ..." with the run's last checkpoint and the command that
// continues from it, or starts again where there is none yet. Reads files. Does not throw.
std::string stopped_line(const StartedRun& run, int signal);

// The line of rank 0 of a training that a signal has stopped and that was saved.
std::string saved_line(const StartedRun& run, int signal, int64_t step);

// The text for a full disk: the file, and how to continue. "" for other errors.
std::string full_disk_text(const StartedRun& run, const std::exception& error);

// While it lives, SIGINT, SIGTERM and SIGUSR1 write stopped_line() to stderr and end the process
// with 128 + signal; SIGTERM and SIGUSR1 are left to a training that listens for them
// (train/stop_signals.h). Signals that the process ignores stay ignored.
// Requires: it is made before libtorch starts threads, which must not take the signals.
class StopOnSignal {
 public:
  explicit StopOnSignal(StartedRun run);
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
  ~StopOnSignal();

 private:
  void watch(const StartedRun& run) const;

  UniqueFd signals_;
  UniqueFd end_;
  std::thread thread_;
};

}  // namespace lockstep::inline v0::engine
