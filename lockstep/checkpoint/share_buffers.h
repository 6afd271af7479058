// share_buffers(): what is measured is what is saved, where training has moved the ranks' buffers apart.
#pragma once

#include "lockstep/comm/communicator.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

// Rank 0's buffers, such as BatchNorm's running statistics, on all ranks. Each rank has moved its own, and a
// checkpoint has rank 0's: so before every evaluation and every save of a loop of one's own, whatever averages its
// gradients. Trainer, Accelerator, zero::Engine and `lockstep train` do it by themselves. Collective; sends nothing for
// a module without buffers.
void share_buffers(const torch::nn::Module& module, Communicator& comm);
// The same for a module's holder, or a pointer to a module.
template <typename Holder>
  requires requires(const Holder& holder) { holder->named_buffers(); }
void share_buffers(const Holder& holder, Communicator& comm) {
  share_buffers(static_cast<const torch::nn::Module&>(*holder), comm);
}

}  // namespace lockstep
