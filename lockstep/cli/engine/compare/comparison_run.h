// Runs trainings one after another and compares their results: `lockstep train` with several
// strategies, or the programs of --programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/bench/comparison.h"
#include "lockstep/bench/program_experiment.h"
#include "lockstep/cli/engine/compare/options.h"

namespace lockstep::inline v0::engine {

// One training: a program (bench/program_experiment.h) that writes its result (report/run_result.h)
// to result().
struct ComparedJob {
  std::string name;           // its row's
  std::string tutorial = {};  // a tutorial's name for it
  std::string writes;         // `method` of its result
  int64_t nproc = 1;          // ranks or devices
  bool for_scaling = false;   // a point of the scaling of `name`, not a row
  std::filesystem::path folder;
  std::vector<std::string> command;

  std::filesystem::path log() const { return folder / bench::kJobLog; }
  std::filesystem::path result() const { return folder / "run.json"; }
};

// A row of the comparison, from which plan_jobs() makes jobs.
struct ComparedRow {
  std::string name, tutorial = {}, writes = {};  // as in ComparedJob
  bool has_ranks = true;                         // otherwise it always has one
};
// Plans each row on `nproc` ranks, then those that have ranks on the other numbers of `scaling`.
// command(i, job) returns the command of a job of the i-th row, whose other members are set. Pure.
std::vector<ComparedJob> plan_jobs(
    const std::vector<ComparedRow>& rows, const CompareOptions& options, int64_t nproc,
    std::vector<int64_t> scaling,
    const std::function<std::vector<std::string>(size_t i, const ComparedJob& job)>& command);

// A comparison with the facts that are known before its first job: the machine, the date, ranks and
// threads.
bench::Comparison begun_comparison(const CompareOptions& options, int64_t nproc);

// Runs the jobs, and writes comparison.json, comparison.md and comparison.html anew after each of
// them. Exit codes and exceptions are those of bench::run_programs().
int run_comparison(bench::Comparison begun, const std::vector<ComparedJob>& jobs,
                   const CompareOptions& options);

}  // namespace lockstep::inline v0::engine
