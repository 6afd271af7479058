#include "lockstep/cli/run_mpi.h"

#include "lockstep/cli/usage.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/mpirun.h"

namespace lockstep::cli {

void check_mpi_flags(const RunFlags& flags, const RunPlan& plan) {
  if (plan.options.nodes) {
    throw UsageError(
        "--backend mpi: on several hosts start the program with mpirun itself: "
        "LOCKSTEP_BACKEND=mpi mpirun -n N -H HOSTS PROGRAM");
  }
  const std::pair<bool, const char*> theirs[] = {
      {flags.max_restarts > 0, "--max-restarts"},
      {!flags.log_dir.empty(), "--log-dir"},
      {flags.redirects != "0", "--redirects"},
      {flags.tee != "0", "--tee"},
      {!flags.show_ranks.empty(), "--local-ranks-filter"},
      {flags.no_use_env, "--no-use-env"},
      {!flags.prefix_template.empty(), "--log-line-prefix-template"},
  };
  for (const auto& [given, name] : theirs) {
    if (given)
      throw UsageError(std::string(name) +
                       " does not go with --backend mpi: mpirun starts the ranks");
  }
}

std::vector<std::string> mpi_command(const RunPlan& plan) {
  std::vector<std::string> words;
  if (plan.options.prefix != launch::LinePrefix::kNone) words.emplace_back("--tag-output");
  words.insert(words.end(), plan.options.command.begin(), plan.options.command.end());
  return words;
}

int run_by_mpirun(const RunPlan& plan) {
  std::map<std::string, std::string> env = plan.options.env;
  if (plan.options.threads_per_rank)
    env["OMP_NUM_THREADS"] = std::to_string(*plan.options.threads_per_rank);
  Subprocess mpirun(launch::mpirun_process(plan.options.nproc, mpi_command(plan), env));
  const ExitStatus status = mpirun.wait(Deadline::after(Deadline::Duration::max()));
  if (status.signal != 0) return 128 + status.signal;
  return status.exit_code == 0 || status.exit_code == 2 ? status.exit_code : 1;
}

}  // namespace lockstep::cli
