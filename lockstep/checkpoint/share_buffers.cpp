#include "lockstep/checkpoint/share_buffers.h"

#include <torch/nn/module.h>

#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

void share_buffers(const torch::nn::Module& module, Communicator& comm) {
  broadcast_tensors(comm, to_named_tensors(module.named_buffers()));
}

}  // namespace lockstep::inline v0
