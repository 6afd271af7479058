// mpi: Open MPI or MPICH, loaded at run time, for ranks that mpirun or srun started.
//
// Every operation is one of MPI's non-blocking ones, tested in a loop: a blocking MPI call knows no
// deadline. MPI promises neither an order of additions nor equal bits on all ranks. It does not
// authenticate its peers: mpirun's own network does what it does.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep {

struct MpiOptions {
  int rank = 0;  // in this group
  int size = 1;
  int local_size = 1;  // ranks on this host: whether waits may spin
  // A group of some ranks of the job: the job's rank and size, and the members' ranks in the job,
  // in this group's order. Empty: the group is the job.
  int world_rank = 0;
  int world_size = 1;
  std::vector<int> members = {};
};

// Collective over the group. The store (new to this group, a PrefixStore) is where the ranks meet
// before they enter MPI, which knows no deadline; null for a group of one. The first call of a
// process initialises MPI, and MPI_Finalize runs when it exits with status 0. After Timeout,
// PeerLost or Mismatch MPI may still write into the operation's memory: end the process. Throws
// LaunchError (no MPI; not started by mpirun), Mismatch, Timeout, StoreError, PeerLost.
std::unique_ptr<Backend> make_mpi_backend(Store* store, const MpiOptions& options,
                                          Deadline deadline);

}  // namespace lockstep
