// nccl: NVIDIA's collectives for tensors on CUDA devices, one device per rank. Loaded at run time.
//
// Operations run on a stream of the backend's own, ordered after the work that the caller's current
// stream had been given at the call. A wait orders that stream after the operation and lets the
// host continue. Meanwhile the host watches the operation (device_watch.h). Messages have a stream
// for each direction between two ranks. Such a pair is connected when it is first used
// (nccl_link.h), and the first wait on the host waits for that connection. NCCL neither
// authenticates its peers nor promises an order of additions; 16-bit types are summed as they are.
#pragma once

#include <memory>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

struct NcclOptions {
  int rank = 0;
  int size = 1;
  int device = 0;  // this rank's device, by CUDA's number; differs on all ranks
};

// The store must be new to this group (a PrefixStore); the first messages between two ranks use it
// later. NCCL is LOCKSTEP_NCCL, otherwise the loader's libnccl.so.2.
// Collective: all ranks of the group.
// Throws: LaunchError (no NCCL, no CUDA in libtorch, no such device), Timeout that names the
// missing ranks, StoreError, PeerLost, and the errors of the store's waits.
std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<Store> store, const NcclOptions& options,
                                           Deadline deadline);

}  // namespace lockstep::inline v0
