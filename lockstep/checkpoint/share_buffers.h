// share_buffers(): makes the buffers that are evaluated those that are saved, where training has
// made the ranks' buffers differ.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0 {

// Copies rank 0's buffers, such as BatchNorm's running statistics, to all ranks. Each rank has
// updated its own, and a checkpoint has rank 0's: call it before every evaluation and every save of
// your own loop, whichever wrapper averages its gradients. Trainer, Accelerator, zero::Engine and
// `lockstep train` call it themselves. Collective; sends nothing for a module without buffers.
LOCKSTEP_API void share_buffers(const torch::nn::Module& module, Communicator& comm);
// The same for a module's holder, or a pointer to a module.
template <typename Holder>
  requires requires(const Holder& holder) { holder->named_buffers(); }
void share_buffers(const Holder& holder, Communicator& comm) {
  share_buffers(static_cast<const torch::nn::Module&>(*holder), comm);
}

}  // namespace lockstep::inline v0
