// `lockstep run --backend mpi`: MPI's ranks find each other through MPI's own launcher, so that is
// what starts them.
#pragma once

#include "lockstep/cli/run/command.h"
#include "lockstep/launch/mpirun.h"

namespace lockstep::cli {

// Refuses flags that mpirun cannot follow. Pure.
// Throws: UsageError that names the flag.
void check_mpi_flags(const RunFlags& flags, const RunPlan& plan);

// What mpirun is to start for a plan. Pure.
launch::MpirunJob mpi_job(const RunPlan& plan);

// Runs it by mpirun, whose output is this process's. Returns the exit code, as `lockstep run` has
// them.
// Throws: LaunchError.
int run_by_mpirun(const RunPlan& plan);

}  // namespace lockstep::cli
