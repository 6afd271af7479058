// peer: tensors on CUDA devices among the ranks of one host, which read each other's device memory:
// by CUDA's IPC where they are processes. Several may share a device.
//
// Sums are made by libtorch's kernels over the ranks' memory, in rank order: the same bits on every
// rank, in every run, for any division of the work, and those of the engines local and shm. Memory
// of 4 slots is taken from the device for each communicator. Messages go through pinned memory, as
// those of staged/.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "lockstep/comm/backend.h"
#include "lockstep/core/deadline.h"

namespace lockstep {

// Equal on all ranks.
struct PeerSizes {
  int64_t slot_bytes = 8 << 20;  // longer calls go in windows of about so much
  // Up to here, and between two ranks, every rank sums up an all_reduce whole; else each its share.
  int64_t whole_up_to = 256 << 10;
};

// Collective over the ranks of `host`, an engine whose ranks have shared memory (local, shm), over
// which they meet in every call. The device is a CUDA device. order() blocks until all ranks have
// made the call, as a wait in `host` does, with that one's errors, and never for a device. Throws
// LaunchError on a rank that has no CUDA runtime, and on all where one cannot share memory; Timeout,
// PeerLost.
std::unique_ptr<Backend> make_peer_backend(std::unique_ptr<Backend> host, c10::Device device,
                                           int rank, int size, Deadline deadline,
                                           const PeerSizes& sizes = {});

}  // namespace lockstep
