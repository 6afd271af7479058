// A training run that ends before its time: what is said of it, and how it is gone on with.
#pragma once

#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::engine {

struct StartedRun {
  std::filesystem::path output;
  Arguments arguments;  // of `lockstep train`
  bool resumed = false;
  std::string command;  // how the user calls lockstep
  std::filesystem::file_time_type started = std::filesystem::file_time_type::clock::now();
};

// The command line that goes on from the last checkpoint, for a shell. Pure.
std::string resume_command(const StartedRun& run);

// "lockstep train: stopped by SIGINT; ..." with the run's last checkpoint and the command that goes
// on from it, or starts again where there is none yet. Reads files. Never throws.
std::string stopped_line(const StartedRun& run, int signal);

// What rank 0 of a training says that a signal has stopped and saved.
std::string saved_line(const StartedRun& run, int signal, int64_t step);

// What is said where the disk is full: the file, and how to go on. "" for other errors.
std::string full_disk_text(const StartedRun& run, const std::exception& error);

// While it lives, SIGINT, SIGTERM and SIGUSR1 write stopped_line() to stderr and end the process
// with 128 + signal; but SIGTERM and SIGUSR1 are left to a training that listens for them
// (train/stop_signals.h). To be made before libtorch starts threads: they must not take the
// signals. Signals that the process ignores stay ignored.
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

}  // namespace lockstep::engine
