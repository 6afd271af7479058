// Trainings one after another, and their results side by side, whatever they are: `lockstep train`
// with several strategies, or the programs of --programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/bench/comparison.h"
#include "lockstep/bench/program_experiment.h"
#include "lockstep/cli/engine/compare/options.h"

namespace lockstep::engine {

// One training: a program (bench/program_experiment.h) that writes its result (report/run_result.h)
// to result().
struct ComparedJob {
  std::string name;           // of its row
  std::string tutorial = {};  // what a tutorial calls it
  std::string writes;         // `method` of its result
  int64_t nproc = 1;          // ranks or devices
  bool for_scaling = false;   // a point of the scaling of `name`, not a row
  std::filesystem::path folder;
  std::vector<std::string> command;

  std::filesystem::path log() const { return folder / bench::kJobLog; }
  std::filesystem::path result() const { return folder / "run.json"; }
};

// A row to come, of which plan_jobs() makes jobs.
struct ComparedRow {
  std::string name, tutorial = {}, writes = {};  // as of ComparedJob
  bool has_ranks = true;                         // otherwise it has one, whatever is asked for
};
// Each row on `nproc` ranks, then those that have ranks on the other numbers of `scaling`.
// command(i, job): of a job of the i-th row, all but its command. Pure.
std::vector<ComparedJob> plan_jobs(
    const std::vector<ComparedRow>& rows, const CompareOptions& options, int64_t nproc,
    std::vector<int64_t> scaling,
    const std::function<std::vector<std::string>(size_t i, const ComparedJob& job)>& command);

// What can be said of a comparison before its first job: the machine, the day, ranks and threads.
bench::Comparison begun_comparison(const CompareOptions& options, int64_t nproc);

// Runs the jobs, and writes comparison.json, comparison.md and comparison.html after each of them
// anew. Exit codes and what it throws: bench::run_programs().
int run_comparison(bench::Comparison begun, const std::vector<ComparedJob>& jobs,
                   const CompareOptions& options);

}  // namespace lockstep::engine
