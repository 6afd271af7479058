// Runs jobs one after another and puts their results side by side, whatever they are: `lockstep train`
// with several strategies, or programs of somebody's own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/report/comparison.h"

namespace lockstep::engine {

// One training: a command that writes its result (report/run_result.h) to result() and ends with 0. Its
// progress bar goes to stderr; what it prints is kept in log(). Bad input is one line on stderr and exit
// code 2.
struct ComparedJob {
  std::string name;           // of its row
  std::string tutorial = {};  // what a tutorial calls it
  std::string writes;         // `method` of its result
  int64_t nproc = 1;          // ranks or devices
  bool for_scaling = false;   // a point of the scaling of `name`, not a row
  std::filesystem::path folder;
  std::vector<std::string> command;

  std::filesystem::path log() const { return folder / "log.txt"; }
  std::filesystem::path result() const { return folder / "run.json"; }
};

// The folder of a job in `output`: its name, and the number of ranks where it is for scaling.
std::filesystem::path job_folder(const std::filesystem::path& output, const std::string& name,
                                 int64_t scaled_to = 0);

struct ComparisonRun {
  Comparison begun;  // all but what the jobs find
  std::vector<ComparedJob> jobs;
  std::vector<std::string> former_names;  // that jobs of a former comparison may have
  std::filesystem::path output;           // there
  std::string json;                       // a copy of comparison.json; "": none
  double timeout = 86400;                 // seconds that a job may take
};

// Runs the jobs, and writes comparison.json, comparison.md and comparison.html after each of them anew.
// Exit codes: 0; 1 if a job failed, and the others have run. Throws InvalidArgument with the first job's
// line where that refuses its input; SystemError if the output cannot be written.
int run_comparison(ComparisonRun run);

// The machine and the day, for `begun`.
Comparison comparison_of_this_machine();

// "1,2,4" without `nproc`, each once, in order.
std::vector<int64_t> other_sizes(std::vector<int64_t> sizes, int64_t nproc);

}  // namespace lockstep::engine
