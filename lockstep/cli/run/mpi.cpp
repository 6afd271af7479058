#include "lockstep/cli/run/mpi.h"

#include "lockstep/cli/usage.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::cli {

void check_mpi_flags(const RunFlags& flags, const RunPlan& plan) {
  if (plan.options.nodes) {
    throw UsageError(
        "--backend mpi: on several hosts start the program with mpirun itself: "
        "LOCKSTEP_BACKEND=mpi mpirun -n N -H HOSTS PROGRAM");
  }
  const std::pair<bool, const char*> theirs[] = {
      {flags.max_restarts > 0, "--max-restarts"},
      {!flags.roles.empty(), "--role NAME=COUNT"},
      {!flags.log_dir.empty(), "--log-dir"},
      {!flags.output_filename.empty(), "--output-filename"},
      {!flags.on_failure.empty() && flags.on_failure != "stop", "--on-failure"},
      {flags.stop_grace.has_value(), "--stop-grace"},
      {flags.allow_lost_logs, "--allow-lost-logs"},
      {!flags.trace_dir.empty(), "--trace-dir"},
      {!flags.simulate_failures.empty(), "--simulate-failures"},
      {flags.redirects != "0", "--redirects"},
      {flags.tee != "0", "--tee"},
      {!flags.show_ranks.empty(), "--local-ranks-filter"},
      {flags.no_use_env, "--no-use-env"},
      {!flags.bind_to.empty(), "--bind-to"},
      {!flags.map_by.empty(), "--map-by"},
      {flags.report_bindings, "--report-bindings"},
      {!flags.prefix_template.empty(), "--log-line-prefix-template"},
  };
  for (const auto& [given, name] : theirs) {
    if (given)
      throw UsageError(std::string(name) +
                       " does not go with --backend mpi: mpirun starts the ranks");
  }
}

launch::MpirunJob mpi_job(const RunPlan& plan) {
  launch::MpirunJob job{.nproc = plan.options.nproc,
                        .command = plan.options.command,
                        .env = plan.options.env,
                        .tag_lines = plan.options.prefix != launch::LinePrefix::kNone};
  if (plan.options.threads_per_rank)
    job.env["OMP_NUM_THREADS"] = std::to_string(*plan.options.threads_per_rank);
  return job;
}

int run_by_mpirun(const RunPlan& plan) {
  const ExitStatus status = launch::run_mpirun(launch::find_mpirun(process_env()), mpi_job(plan));
  if (status.signal != 0) return 128 + status.signal;
  return status.exit_code == 0 || status.exit_code == 2 ? status.exit_code : 1;
}

}  // namespace lockstep::inline v0::cli
