// staged: tensors of a device over any engine of the host. They go down to pinned memory, across by
// that engine, and up again, on streams of their own beside what the device computes.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "lockstep/comm/backend.h"

namespace lockstep {

// Equal on all ranks.
struct StagedSizes {
  // Over local and shm, collectives longer than a slot go in pieces of one, which are copied while
  // others are exchanged. Other engines get every call whole: their copies overlap with other calls.
  int64_t slot_bytes = 4 << 20;
  // Collectives have at most so much pinned memory at once, and one that is longer than all of it.
  int64_t slots = 32;
};

// What `host` does, this does on `device` (not the CPU): the same operations, with the same bits.
// Several ranks may share a device. The engine is moved by a thread of the backend, which ends with
// it; order() blocks until the data is across, as a wait in `host` does, with that one's errors, and
// never for the device but for what makes the call's input.
std::unique_ptr<Backend> make_staged_backend(std::unique_ptr<Backend> host, c10::Device device,
                                             int rank, int size, const StagedSizes& sizes = {});

}  // namespace lockstep
