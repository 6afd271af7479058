// RankCopy: a rank's own state as bytes, and the copies of it that its neighbours keep. For this
// room and train; not a public header.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0::recover {

// The state at one moment. unpack() gives copies, on the CPU.
struct RankState {
  at::Tensor generator;  // uint8: rng_state() of the device on which the rank trains
  std::vector<at::Tensor> buffers = {};  // of the module, such as running means
  std::string extra = {};                // the caller's own state
};

// The buffers of a module, in its order.
std::vector<at::Tensor> buffers_of(const torch::nn::Module& model);

// Packs it into one uint8 tensor. Buffers are identified by their place: where they are unpacked,
// there must be as many, of the same shapes and types.
at::Tensor pack(const RankState& state);
// `like`: this process's buffers. Throws DataError where the bytes are not such a state.
RankState unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& like);

// Packed states by rank.
using Copies = std::map<int, at::Tensor>;

// Gives `own` to the ranks that keep copies for this rank (replica_holders() in holders.h), and
// returns those that this rank keeps. `local` is the same on all ranks. Collective.
Copies exchange_copies(Communicator& comm, const at::Tensor& own, int local);

// Sends a copy of which the receiver does not know the length, and receives one.
void send_copy(Communicator& comm, const at::Tensor& copy, int to);
at::Tensor receive_copy(Communicator& comm, int from);

}  // namespace lockstep::inline v0::recover
