// The options of every `lockstep compare`, and the checks before its first job starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/bench/program_experiment.h"
#include "lockstep/cli/engine/command_line.h"
#include "lockstep/train/run_claim.h"

namespace lockstep::inline v0::engine {

struct CompareOptions {
  std::string output = "runs/compare";
  std::string json = {};
  int64_t threads = 0;     // a rank's; 0: processors / ranks
  double timeout = 86400;  // seconds that a job may take

  // Adds --output, --json, --threads-per-rank and --timeout. `job` is what the time-out applies to,
  // "a strategy"; `file` is the file that --json copies.
  void add_to(CLI::App& app, const std::string& job, const std::string& file);
  // Called after parsing.
  // Throws: InvalidArgument.
  void check(const CLI::App& app) const;
  // The threads of each of `nproc` ranks.
  int64_t threads_of(int64_t nproc) const;
  // Checks that this process is no rank and that results can be written, and sets `threads` for
  // each of `nproc` ranks. Returns the claim on the output's folder, which it removes again if
  // nothing is written.
  // Throws: InvalidArgument.
  [[nodiscard]] std::unique_ptr<RunClaim> begin(int64_t nproc);

  // An experiment of `compare` with these options, without its jobs and files.
  bench::ProgramExperiment experiment() const;
};

// Refuses these options in `arguments`, which are passed on to each job.
// Throws: InvalidArgument.
void refuse_chosen(const Arguments& arguments, std::initializer_list<const char*> chosen);

// A program of this installation that jobs execute.
// Throws: InvalidArgument where it is missing or cannot be executed.
std::string job_program(const std::filesystem::path& program);
// The `lockstep` command, which starts ranks.
// Throws: as job_program().
std::string lockstep_program();

}  // namespace lockstep::inline v0::engine
