// job_store(): a store for the programs of a job themselves, beside the communicator or without one.
#pragma once

#include <memory>

#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep {

// The store by which the ranks of this process's job find each other; init() uses other keys of it.
// Its keys last as long as the job, so those that a rank has set are there when it is started again
// (lockstep run --role NAME=COUNT,restarts=N). Each call makes a connection of its own, which must
// be there before `deadline`; the waits of the Store have theirs.
//
// Under lockstep run any rank calls it at any time, and so under Open MPI's mpirun on one host.
// Under torchrun and other mpiruns rank 0 serves the store as long as it keeps what this returns,
// and all ranks call together, once. Alone each call makes a new store of this process. Throws
// InvalidArgument where the ranks are only told where rank 0 listens (srun, MASTER_ADDR), and
// Timeout, StoreError.
std::shared_ptr<Store> job_store(Deadline deadline);

}  // namespace lockstep
