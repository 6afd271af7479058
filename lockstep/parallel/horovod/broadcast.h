// Makes ranks start from the same state: one rank's parameters, buffers (broadcast_parameters()) and
// optimizer state are copied to all. Before an evaluation and a save, share_buffers()
// (checkpoint/share_buffers.h) is enough.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/replicas/broadcast_parameters.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace lockstep::inline v0 {

// Gives every rank the root's optimizer state and options (including the learning rate), whatever
// state its own has. For optimizers that optimizer_state() supports (checkpoint/optimizer_state.h),
// of the same kind and with the same parameters on all ranks.
// Collective: all ranks call it.
// Throws: InvalidArgument on all ranks where the root's is of another kind, CheckpointError on a
// rank whose optimizer cannot load the state.
LOCKSTEP_API void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, Communicator& comm,
                                            int root = 0);

}  // namespace lockstep::inline v0
