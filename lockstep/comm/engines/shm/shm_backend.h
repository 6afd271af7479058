// shm: the ranks are processes of one host that share a memory segment.
//
// The segment is a sealed memfd: it has no name in /dev/shm (which containers keep small), and it
// is gone with its last process even after SIGKILL. Rank 0 makes it and hands it out over an
// abstract Unix socket, whose name and secret travel through the job's store. Every rank also gets
// one end of a pipe of every other rank: when a process dies, for any reason, its pipes hang up.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/rounds/engine.h"
#include "lockstep/core/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0 {

// The `shape.size` ranks must be on one host; the store must be new to this group (a PrefixStore).
// `shape` and `tuning` are the same on all ranks; null: what suits the host's processor.
// Collective: all of those ranks.
// Throws: Timeout, StoreError, Mismatch, SystemError.
std::unique_ptr<Backend> make_shm_backend(Store& store, int rank, const rounds::RegionShape& shape,
                                          Deadline deadline,
                                          const std::optional<rounds::Tuning>& tuning = {});

}  // namespace lockstep::inline v0
