// staged: tensors of a device over any engine of the host. They are copied down to pinned memory,
// across by that engine, and up again, on streams of their own beside the device's computation.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "lockstep/comm/backend/backend.h"

namespace lockstep::inline v0 {

// The values are equal on all ranks.
struct StagedSizes {
  // Over local and shm, collectives longer than a slot go in pieces of one slot, which are copied
  // while others are exchanged. Other engines get every call whole: its copies overlap with other
  // calls.
  int64_t slot_bytes = 4 << 20;
  // Collectives use at most this many slots of pinned memory at once; a longer one runs alone.
  int64_t slots = 32;
};

// Makes a backend that does on `device` (not the CPU) what `host` does: the same operations, with
// the same bits. Several ranks may share a device. A thread of the backend, which ends with it,
// progresses the engine. order() blocks until the data has been exchanged, like a wait in `host`
// and with its errors; it waits for the device only as far as the call's input requires.
std::unique_ptr<Backend> make_staged_backend(std::unique_ptr<Backend> host, c10::Device device,
                                             int rank, int size, const StagedSizes& sizes = {});

}  // namespace lockstep::inline v0
