#include "lockstep/launch/mpirun.h"

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::launch {

SubprocessOptions mpirun_process(int nproc, const std::vector<std::string>& command,
                                 const std::map<std::string, std::string>& env) {
  SubprocessOptions options;
  try {
    options.program = find_program("mpirun");
  } catch (const LaunchError&) {
    throw LaunchError(
        "mpirun is not on PATH; install Open MPI (Debian, Ubuntu: apt install openmpi-bin)");
  }
  options.command = {"mpirun", "-n", std::to_string(nproc), "--oversubscribe", "--bind-to", "none"};
  options.command.insert(options.command.end(), command.begin(), command.end());
  options.own_session = false;

  Variables variables = {
      {"OMPI_ALLOW_RUN_AS_ROOT", "1"},  // of version 4; PRTE: of version 5
      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
      {"PRTE_ALLOW_RUN_AS_ROOT", "1"},
      {"PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
      {"OMPI_MCA_mpi_yield_when_idle", nproc > usable_cpu_count() ? "1" : "0"},
      {"OMP_NUM_THREADS", process_env()("OMP_NUM_THREADS").value_or("1")},
  };
  for (const char* name : {"LOCKSTEP_STORE", "LOCKSTEP_SECRET_FD", "LOCKSTEP_SPAWN_CALL", "RANK",
                           "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                           "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    variables[name] = "";
  }
  for (const auto& [name, value] : env) variables[name] = value;
  options.env = merge_environment(current_environment(), variables);
  return options;
}

}  // namespace lockstep::launch
