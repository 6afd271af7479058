// JobEnvironment: which rank this process is, as the launcher that started it says.
#pragma once

#include <optional>
#include <string>

#include "lockstep/core/env.h"
#include "lockstep/core/net.h"

namespace lockstep::launch {

enum class Launcher {
  kNone,      // started by hand: one process, alone
  kLockstep,  // lockstep run, launch::spawn
  kTorchrun,  // torchrun, or any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
  kOpenMpi,   // mpirun of Open MPI
  kMpich,     // mpirun of MPICH's family: Hydra, Intel MPI's, Cray's, MVAPICH's
  kSlurm,     // srun
};
const char* to_string(Launcher launcher);

// 0 <= rank < world_size; 0 <= local_rank < local_world_size; 0 <= node_rank < nodes.
struct JobEnvironment {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int restart_count = 0;
  std::optional<HostPort> store;   // LOCKSTEP_STORE: Lockstep's own store, kept by the agent
  std::optional<HostPort> master;  // MASTER_ADDR, MASTER_PORT
};

// Reads the environment of, in this order, Lockstep (LOCKSTEP_STORE with RANK, …), torchrun, an
// mpirun (mpi_family.h: OMPI_COMM_WORLD_* or PMI_*) and Slurm (SLURM_PROCID inside a job step of
// several tasks). Pure. Throws InvalidArgument that names the variable when values are missing,
// malformed or contradict each other (RANK=3 of WORLD_SIZE=2).
JobEnvironment read_job_environment(const EnvLookup& env);

}  // namespace lockstep::launch
