#include "lockstep/cli/engine/compare/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/report/table.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;

void CompareOptions::add_to(CLI::App& app, const std::string& job, const std::string& file) {
  app.add_option("--threads-per-rank", threads,
                 "each rank is a device of so many threads [" +
                     (threads == 0 ? "processors / ranks" : std::to_string(threads)) + "]");
  app.add_option("--timeout", timeout,
                 "seconds that " + job + " may take [" + fixed(timeout, 0) + "]");
  app.add_option("--output", output, "directory for everything [" + output + "]")->type_name("DIR");
  app.add_option("--json", json, "also write " + file + " to this file")->type_name("FILE");
}

void CompareOptions::check(const CLI::App& app) const {
  refuse_zeros(app, {"--threads-per-rank"});
  if (threads < 0)
    throw InvalidArgument("--threads-per-rank is " + std::to_string(threads) + "; give 1 or more");
  if (!(timeout > 0)) throw InvalidArgument("--timeout must be more than 0 seconds");
}

int64_t CompareOptions::threads_of(int64_t nproc) const {
  return threads > 0 ? threads : std::max<int64_t>(1, usable_cpu_count() / nproc);
}

std::unique_ptr<RunClaim> CompareOptions::begin(int64_t nproc) {
  if (launch::read_job_environment(process_env()).launcher != launch::Launcher::kNone)
    throw InvalidArgument("compare starts the ranks itself; call it without a launcher");
  auto claim = std::make_unique<RunClaim>(output, process_env());
  check_result_files({json});
  threads = threads_of(nproc);
  return claim;
}

bench::ProgramExperiment CompareOptions::experiment() const {
  return {.name = "compare",
          .jobs = {},
          .threads = threads,
          .timeout = timeout,
          .output = output,
          .write = {},
          .summary = {}};
}

void refuse_chosen(const Arguments& arguments, std::initializer_list<const char*> chosen) {
  for (const std::string& argument : with_dashes(arguments)) {
    for (const std::string own : chosen) {
      // `lockstep train`, which gets these, takes a shortened option for the whole one.
      const std::string name = argument.substr(0, argument.find('='));
      if (name.size() > 2 && own.starts_with(name))
        throw InvalidArgument(argument + " does not go with compare, which chooses it");
    }
  }
}

std::string job_program(const fs::path& program) {
  if (::access(program.c_str(), X_OK) == 0 && !fs::is_directory(program)) return program.string();
  throw InvalidArgument(program.string() + ", which the jobs need, is missing; build the target " +
                        program.filename().string() + ", or install Lockstep anew");
}

std::string lockstep_program() {
  return job_program(own_prefix() / "bin" / "lockstep");
}

}  // namespace lockstep::inline v0::engine
