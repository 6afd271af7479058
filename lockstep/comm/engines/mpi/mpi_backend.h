// mpi: Open MPI or MPICH, loaded at run time, for ranks that mpirun or srun started.
//
// Every operation is one of MPI's non-blocking ones, tested in a loop, since a blocking MPI call
// has no deadline. MPI promises neither an order of additions nor equal bits on all ranks. It does
// not authenticate its peers beyond what mpirun's own network does.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/mpi/mpi_world.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

struct MpiOptions {
  int rank = 0;  // in this group
  int size = 1;
  int local_size = 1;  // ranks on this host; decides whether waits may spin
  // The job's processes. Null: those that mpirun or srun started.
  std::shared_ptr<const mpi::World> world = nullptr;
  // For a group of some ranks of the job: the job's rank and size, and the members' ranks in the
  // job, in this group's order. Empty: the group is the job.
  int job_rank = 0;
  int job_size = 1;
  std::vector<int> members = {};
};

// The ranks meet in `store` (new to this group, a PrefixStore; null for a group of one) before they
// enter MPI, where making a group of some ranks has no deadline (mpi_group.h). Without a world, the first call of a process initialises MPI,
// and MPI_Finalize runs when it exits with status 0. After Timeout, PeerLost or Mismatch MPI may still write into
// the operation's memory: end the process.
// Collective: all ranks of the group.
// Throws: LaunchError (no MPI; not started by mpirun), Mismatch, Timeout, StoreError, PeerLost.
std::unique_ptr<Backend> make_mpi_backend(Store* store, const MpiOptions& options,
                                          Deadline deadline);

}  // namespace lockstep::inline v0
