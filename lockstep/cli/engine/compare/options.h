// What every `lockstep compare` is told, and sees before its first job starts.
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

namespace lockstep::engine {

struct CompareOptions {
  std::string output = "runs/compare";
  std::string json = {};
  int64_t threads = 0;     // of a rank; 0: processors / ranks
  double timeout = 86400;  // seconds that a job may take

  // --output, --json, --threads-per-rank and --timeout. `job`: what has the time-out, "a strategy".
  // `file`: what --json gets a copy of.
  void add_to(CLI::App& app, const std::string& job, const std::string& file);
  // After parsing.
  // Throws: InvalidArgument.
  void check(const CLI::App& app) const;
  // Settled: `threads`, or what each of `nproc` ranks has.
  int64_t threads_of(int64_t nproc) const;
  // Sees that this process is no rank and that results can be written, and settles the threads of
  // each of `nproc` ranks. Gives the claim on the output's folder, which goes again if nothing is
  // written.
  // Throws: InvalidArgument.
  [[nodiscard]] std::unique_ptr<RunClaim> begin(int64_t nproc);

  // An experiment of `compare` with these, for which a former comparison moves aside; its jobs and
  // what it writes are left to fill in.
  bench::ProgramExperiment experiment() const;
};

// Throws: InvalidArgument for one of these options in `arguments`, which are passed on to each job.
void refuse_chosen(const Arguments& arguments, std::initializer_list<const char*> chosen);

// A program of this installation that jobs execute.
// Throws: InvalidArgument where it is missing or cannot be executed.
std::string job_program(const std::filesystem::path& program);
// The `lockstep` command, which starts ranks.
// Throws: as job_program().
std::string lockstep_program();

}  // namespace lockstep::engine
