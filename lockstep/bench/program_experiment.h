// An experiment whose jobs are programs: each is started, keeps a log, writes its result to a file,
// and ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::inline v0::bench {

// A program that runs once in every round. Its progress bar goes to stderr, which is a terminal if
// this process's is; its other output is kept in the log. It reports bad input in one line on
// stderr and by exit code 2.
struct ProgramJob {
  std::string name;
  std::vector<std::string> command;
  int64_t nproc = 1;                  // ranks, among which the host's memory is divided
  std::filesystem::path log, result;  // files in a folder that is made for it
  // Keeps the text that the program has written to `result` after so many seconds, and returns its
  // figures in a few words.
  // Throws: Error where it is of no use.
  std::function<std::string(const std::string& result, double seconds)> read;
  // Called when the job has failed and will have no result.
  std::function<void(const std::string& why)> failed = {};
};

struct ProgramExperiment {
  std::string name;  // "compare": in messages
  std::vector<ProgramJob> jobs;
  int rounds = 1;
  bool alike = true;       // the jobs have the same input; if the first refuses it, all would
  int64_t threads = 1;     // OMP_NUM_THREADS of every program
  double timeout = 86400;  // seconds that a turn may take
  std::filesystem::path output;
  // Names in `output` that write() writes, beside the jobs' logs and results.
  std::vector<std::string> files = {};
  // Writes the files of what was found so far. It is called after every turn, and writes all of
  // them anew.
  std::function<void()> write;
  std::function<std::string()> summary;  // the text that is printed at the end
};

// Runs the jobs in turns, and prints the summary. What a former experiment of this name has written
// in `output` moves aside first (experiment_record.h).
//
// Returns the exit code: 0; 1 if a job failed, after the others have run and the last lines of the
// first one's log have been printed; 128 + n if signal n stopped it. The running job is then ended
// in order (program_run.h), and no other starts.
// Requires: no other launch in this process.
// Throws: InvalidArgument before any job starts where something is in the way in `output`, and with
// the first job's line where that refuses its input in its first turn, since the others would say
// the same; SystemError if the output cannot be written.
int run_programs(const ProgramExperiment& experiment);

inline constexpr const char* kJobLog = "log.txt";

// The machine and the date of an experiment.
struct Machine {
  int64_t processors = 0;  // usable ones
  std::string processor;   // their name; may be empty
  std::string date;        // "2025-11-21"
};
Machine this_machine();

}  // namespace lockstep::inline v0::bench
