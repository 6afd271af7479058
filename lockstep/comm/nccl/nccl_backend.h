// nccl: NVIDIA's collectives, for tensors on CUDA devices, one device a rank. Loaded at run time.
//
// Operations run on a stream of the backend's own, ordered after what the caller's current stream
// had been given when it called; a wait orders that stream after the operation and lets the host
// go on. The host sees to the rest meanwhile (device_watch.h). Messages have a stream for each
// direction between two ranks, which are connected when it is first named (nccl_link.h): the host
// waits for that in the first wait. NCCL neither authenticates its peers nor promises an order of
// additions; 16-bit types are summed as they are.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep {

struct NcclOptions {
  int rank = 0;
  int size = 1;
  int device = 0;  // of this rank, by CUDA's number; no two ranks have the same one
};

// Collective. The store must be new to this group (a PrefixStore), and is used by the first
// messages between two ranks. NCCL is LOCKSTEP_NCCL, else what the loader finds as libnccl.so.2.
// Throws LaunchError (no NCCL, no CUDA in libtorch, no such device), Timeout that names the ranks
// which have not come, StoreError, PeerLost, and what the store's waits end with.
std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<Store> store, const NcclOptions& options,
                                           Deadline deadline);

}  // namespace lockstep
