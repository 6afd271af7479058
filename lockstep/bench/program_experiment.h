// An experiment whose jobs are programs: each is started, keeps a log, writes what it found to a
// file, and ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::bench {

// Its progress bar goes to stderr, on a terminal here too; all else that it prints is kept in the
// log. Bad input is one line on stderr and exit code 2.
struct ProgramJob {
  std::string name;
  std::vector<std::string> command;
  int64_t nproc = 1;                  // ranks, among which the host's memory is divided
  std::filesystem::path log, result;  // files in a folder that is made for it
  // Keeps what the program wrote to `result` after so many seconds, and says it in a few words.
  // Throws Error where it is of no use.
  std::function<std::string(const std::string& result, double seconds)> read;
  // There is no result, nor will there be one.
  std::function<void(const std::string& why)> failed = {};
};

struct ProgramExperiment {
  std::string name;  // "compare": in messages
  std::vector<ProgramJob> jobs;
  int rounds = 1;
  bool alike = true;       // what one refuses as its input the others would, too
  int64_t threads = 1;     // OMP_NUM_THREADS of every program
  double timeout = 86400;  // seconds that a turn may take
  std::filesystem::path output;
  // Files and folders there that a former experiment has left, which move to `previous`.
  std::vector<std::string> former = {};
  // Writes the files of what was found so far: after every turn, all of them anew.
  std::function<void()> write;
  std::function<std::string()> summary;  // what is printed at the end
};

// Exit codes: 0; 1 if a job failed, and the others have run: the last lines of the first one's log
// are then the last thing on stderr. Throws InvalidArgument with the first job's line where that
// refuses its input in its first turn, since the others would say the same; SystemError if the
// output cannot be written.
int run_programs(const ProgramExperiment& experiment);

// Folders in `output` that have a job's log.
std::vector<std::string> job_folders(const std::filesystem::path& output);
inline constexpr const char* kJobLog = "log.txt";

// Where an experiment ran, and when.
struct Machine {
  int64_t processors = 0;  // that it could use
  std::string processor;   // their name; may be empty
  std::string date;        // "2025-11-21"
};
Machine this_machine();

}  // namespace lockstep::bench
