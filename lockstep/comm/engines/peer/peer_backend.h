// peer: tensors on CUDA devices among the ranks of one host, which read each other's device memory,
// by CUDA's IPC where they are processes. Several ranks may share a device.
//
// libtorch's kernels sum over the ranks' memory in rank order: every rank, every run and every
// division of the work gives the same bits, which are those of the engines local and shm. Each
// communicator takes memory of 4 slots from the device. Messages go through pinned memory, as those
// of staged/.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/core/deadline.h"

namespace lockstep::inline v0 {

// The values are equal on all ranks.
struct PeerSizes {
  int64_t slot_bytes = 8 << 20;  // longer calls are cut into windows of about this size
  // Up to this size, and between two ranks, every rank sums a whole all_reduce; above it each rank
  // sums its share.
  int64_t whole_up_to = 256 << 10;
};

// Makes the backend over `host`, an engine whose ranks share memory (local, shm) and over which
// they meet in every call. The device is a CUDA device. order() blocks until all ranks have made
// the call, like a wait in `host` and with its errors, and never waits for a device.
// Collective: all ranks of `host`.
// Throws: LaunchError on a rank that has no CUDA runtime, and on all ranks where one cannot share
// memory; Timeout, PeerLost.
std::unique_ptr<Backend> make_peer_backend(std::unique_ptr<Backend> host, c10::Device device,
                                           int rank, int size, Deadline deadline,
                                           const PeerSizes& sizes = {});

}  // namespace lockstep::inline v0
