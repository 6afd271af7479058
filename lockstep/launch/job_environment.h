// JobEnvironment: this process's rank, from the launcher that started it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/core/export.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0::launch {

// The launcher that started a process.
enum class Launcher {
  kNone,      // started by hand: one process, alone
  kLockstep,  // lockstep run, launch::spawn
  kTorchrun,  // torchrun, or any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
  kOpenMpi,   // mpirun of Open MPI
  kMpich,     // mpirun of MPICH's family: Hydra, Intel MPI's, Cray's, MVAPICH's
  kSlurm,     // srun
};
// A name for messages, such as "torchrun".
LOCKSTEP_API const char* to_string(Launcher launcher);

// The launcher that started this process: the first in the order of read_job_environment() whose
// variables are set. It is known for a spare, too, which has no rank yet. Pure.
// Throws: InvalidArgument where Slurm's number of tasks is malformed.
LOCKSTEP_API Launcher launcher_of(const EnvLookup& env);

// 0 <= rank < world_size; 0 <= local_rank < local_world_size; 0 <= node_rank < nodes.
struct JobEnvironment {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int restart_count = 0;  // of all ranks, or of this rank alone
  // LOCKSTEP_RESTART_COUNT: how often this rank was restarted alone, where its role has restarts or
  // ranks are replaced.
  std::optional<int> own_restarts;
  // LOCKSTEP_GENERATION, from 0: where ranks are replaced, two processes of a rank differ in it, if
  // they were on two hosts, or in own_restarts.
  int generation = 0;
  bool replaces = false;           // LOCKSTEP_ON_FAILURE=replace: dead ranks are replaced alone
  bool shrinks = false;            // LOCKSTEP_ON_FAILURE=shrink: others go on without dead ranks
  std::optional<HostPort> store;   // LOCKSTEP_STORE: Lockstep's own store, served by the agent
  std::optional<HostPort> master;  // MASTER_ADDR, MASTER_PORT
};

// Reads the environment of, in this order, Lockstep (LOCKSTEP_STORE with RANK, …), torchrun, an
// mpirun (mpi_family.h: OMPI_COMM_WORLD_* or PMI_*) and Slurm (SLURM_PROCID inside a job step of
// several tasks). Pure.
// Throws: InvalidArgument that names the variable when values are missing, malformed or contradict
// each other (RANK=3 of WORLD_SIZE=2).
LOCKSTEP_API JobEnvironment read_job_environment(const EnvLookup& env);
// For this process. A spare waits here until it has a rank (spare_wait.h).
LOCKSTEP_API JobEnvironment job_environment();

// A role of a job, as its programs see it: the ranks first to first + count - 1.
struct RoleRanks {
  std::string name;
  int first = 0;
  int count = 1;

  bool operator==(const RoleRanks&) const = default;
};

// This process's part in its job, from `lockstep run --role NAME=COUNT`.
struct LOCKSTEP_API JobRole {
  std::string name = "default";
  int rank = 0;  // within the role, from 0
  int count = 1;
  // All roles of the job, by rank. One where the launcher gave none; empty where other ranks have
  // unknown roles (torchrun with another --role on each host).
  std::vector<RoleRanks> roles;

  // Throws InvalidArgument that names the existing roles.
  const RoleRanks& ranks_of(std::string_view role) const;
};

// Reads ROLE_NAME, ROLE_RANK and ROLE_WORLD_SIZE, as torchrun sets them too, and LOCKSTEP_ROLES
// ("ps=0-0,trainer=1-4"). Pure.
// Throws: InvalidArgument as read_job_environment() does.
LOCKSTEP_API JobRole read_job_role(const EnvLookup& env);

// For this process; a spare waits, as in job_environment().
LOCKSTEP_API JobRole job_role();

}  // namespace lockstep::inline v0::launch
