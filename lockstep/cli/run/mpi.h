// `lockstep run --backend mpi`: MPI's own launcher starts the ranks, because they find each other
// through it.
#pragma once

#include "lockstep/cli/run/command.h"
#include "lockstep/launch/mpirun.h"

namespace lockstep::inline v0::cli {

// Refuses flags that mpirun cannot follow. Pure.
// Throws: UsageError that names the flag.
void check_mpi_flags(const RunFlags& flags, const RunPlan& plan);

// The job that mpirun starts for a plan. Pure.
launch::MpirunJob mpi_job(const RunPlan& plan);

// Runs the plan by mpirun, whose output is this process's. Returns the exit code in `lockstep
// run`'s sense.
// Throws: LaunchError.
int run_by_mpirun(const RunPlan& plan);

}  // namespace lockstep::inline v0::cli
