// Runs work that one rank does for all, such as writing a checkpoint: the others wait, and learn of
// its failure.
#pragma once

#include <functional>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Rank `root` runs `fn`; the call returns on every rank once it is done. If it throws, the root's
// caller gets the exception and every other rank throws CheckpointError with its message
// (SystemError of the same errno where it was one), so that no rank waits for one that has given
// up.
// Collective: all ranks call it. `fn` must not communicate.
LOCKSTEP_API void on_root(Communicator& comm, const std::function<void()>& fn, int root = 0,
                          Communicator::Site site = Communicator::Site::current());

}  // namespace lockstep::inline v0
