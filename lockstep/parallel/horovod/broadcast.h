// Makes ranks start from the same state: one rank's parameters, buffers and optimizer state are
// copied to all. Before an evaluation and a save, share_buffers() (checkpoint/share_buffers.h) is
// enough.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace lockstep::inline v0 {

// Copies the root's values into the tensors of every rank; short ones travel together.
// Collective: all ranks call it.
// Throws: Mismatch that names the first difference if names, shapes or dtypes are not the same.
LOCKSTEP_API void broadcast_parameters(const NamedTensors& tensors, Communicator& comm,
                                       int root = 0);
// A module's parameters and buffers: its whole state dict.
LOCKSTEP_API void broadcast_parameters(const torch::nn::Module& module, Communicator& comm,
                                       int root = 0);
template <typename Holder>
  requires requires(const Holder& holder) { holder->named_buffers(); }
void broadcast_parameters(const Holder& holder, Communicator& comm, int root = 0) {
  broadcast_parameters(static_cast<const torch::nn::Module&>(*holder), comm, root);
}

// Gives every rank the root's optimizer state and options (including the learning rate), whatever
// state its own has. For optimizers that optimizer_state() supports (checkpoint/optimizer_state.h),
// of the same kind and with the same parameters on all ranks.
// Collective: all ranks call it.
// Throws: InvalidArgument on all ranks where the root's is of another kind, CheckpointError on a
// rank whose optimizer cannot load the state.
LOCKSTEP_API void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, Communicator& comm,
                                            int root = 0);

}  // namespace lockstep::inline v0
