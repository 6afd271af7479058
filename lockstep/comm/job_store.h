// job_store(): a store for a job's own programs, with or without a communicator.
#pragma once

#include <memory>

#include "lockstep/core/deadline.h"
#include "lockstep/core/export.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

// The store by which the ranks of this process's job find each other; init() uses other keys of it.
// Its keys last as long as the job, so a rank that is restarted finds the keys that it has set
// (lockstep run --role NAME=COUNT,restarts=N). Each call makes a connection of its own before
// `deadline`; the waits of the Store have their own deadlines.
//
// Under lockstep run, and under Open MPI's mpirun on one host, any rank calls it at any time. Under
// torchrun and other mpiruns all ranks call it together, once, and rank 0 serves the store as long
// as it keeps the result. A process alone gets a new store of its own from each call.
// Throws: InvalidArgument where the ranks only know where rank 0 listens (srun, MASTER_ADDR);
// Timeout, StoreError.
LOCKSTEP_API std::shared_ptr<Store> job_store(Deadline deadline);

}  // namespace lockstep::inline v0
