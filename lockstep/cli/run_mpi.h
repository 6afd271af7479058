// `lockstep run --backend mpi`: MPI's ranks find each other through MPI's own launcher, so that is
// what starts them.
#pragma once

#include "lockstep/cli/run_command.h"

namespace lockstep::cli {

// Refuses flags that mpirun cannot follow. Pure. Throws UsageError that names the flag.
void check_mpi_flags(const RunFlags& flags, const RunPlan& plan);

// mpirun's arguments for a plan: the program and what belongs before it. Pure.
std::vector<std::string> mpi_command(const RunPlan& plan);

// Runs it by mpirun, whose output is this process's. Returns the exit code, as `lockstep run` has
// them. Throws LaunchError.
int run_by_mpirun(const RunPlan& plan);

}  // namespace lockstep::cli
