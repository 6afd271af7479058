// How ranks come to start from the same: one rank's parameters, buffers and optimizer state to all. Before an evaluation and
// a save share_buffers() (checkpoint/share_buffers.h) is enough.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/flat/named_tensors.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace lockstep {

// Copies the root's values into everybody's tensors; short ones travel together. Collective; throws
// Mismatch that names the first difference if names, shapes or dtypes are not the same.
void broadcast_parameters(const NamedTensors& tensors, Communicator& comm, int root = 0);
// A module's parameters and buffers: all of its state dict.
void broadcast_parameters(const torch::nn::Module& module, Communicator& comm, int root = 0);
template <typename Holder>
  requires requires(const Holder& holder) { holder->named_buffers(); }
void broadcast_parameters(const Holder& holder, Communicator& comm, int root = 0) {
  broadcast_parameters(static_cast<const torch::nn::Module&>(*holder), comm, root);
}

// Gives every rank the root's optimizer state and options (the learning rate among them), whatever
// state its own has. For what optimizer_state() understands (checkpoint/optimizer_state.h), of the
// same kind and with the same parameters on all ranks. Collective. Throws InvalidArgument on all
// ranks where the root's is of another kind, CheckpointError on a rank whose optimizer cannot take
// the state.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, Communicator& comm,
                               int root = 0);

}  // namespace lockstep
