// nccl: NVIDIA's collectives, for tensors on CUDA devices, one device a rank. Loaded at run time.
//
// Operations run on a stream of the backend's own, ordered after what the caller's current stream
// had been given when it called; a wait orders that stream after the operation and lets the host
// go on. The host sees to the rest meanwhile (device_watch.h). NCCL neither authenticates its peers
// nor promises an order of additions.
#pragma once

#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep {

struct NcclOptions {
  int rank = 0;
  int size = 1;
  int device = 0;  // of this rank, by CUDA's number: its local rank
};

// Collective. The store must be new to this group (a PrefixStore). Throws LaunchError (no NCCL, no
// CUDA in libtorch, no such device), Timeout, StoreError, PeerLost.
std::unique_ptr<Backend> make_nccl_backend(Store& store, const NcclOptions& options,
                                           Deadline deadline);

}  // namespace lockstep
