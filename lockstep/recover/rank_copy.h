// RankCopy: what a rank has alone, as bytes, and the copies of it that its neighbours keep. For
// this room and train; not a public header.
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

namespace lockstep::recover {

// Of one moment. What unpack() gives are copies, on the CPU.
struct RankState {
  at::Tensor generator;                  // uint8: rng_state() of what the rank trains on
  std::vector<at::Tensor> buffers = {};  // of the module, such as running means
  std::string extra = {};                // the caller's own
};

// A module's, in its order.
std::vector<at::Tensor> buffers_of(const torch::nn::Module& model);

// One uint8 tensor. Buffers are known by their place: they must be as many, of the same shapes and
// types, where they are unpacked.
at::Tensor pack(const RankState& state);
// `like`: the buffers as they are here. Throws DataError where the bytes are not such a state.
RankState unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& like);

// By rank: packed states.
using Copies = std::map<int, at::Tensor>;

// Gives `own` to the ranks that keep copies of this one's (resumption.h), and returns those that
// this rank keeps. Collective.
Copies exchange_copies(Communicator& comm, const at::Tensor& own);

}  // namespace lockstep::recover
