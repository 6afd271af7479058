// share_buffers(): makes the buffers that are evaluated those that are saved, where training has
// made the ranks' buffers differ.
#pragma once

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// Copies rank 0's buffers, such as BatchNorm's running statistics, to all ranks. Each rank has
// updated its own, and a checkpoint has rank 0's: call it before every evaluation and every save of
// your own loop, whichever wrapper averages its gradients. Trainer, Accelerator, zero::Engine and
// `lockstep train` call it themselves. For a model of any kind (flat/named_tensors.h); sends
// nothing for one without buffers.
// Collective: all ranks call it.
template <ModuleOrHolder M>
void share_buffers(const M& model, Communicator& comm) {
  broadcast_tensors(comm, buffers_of(model));
}

}  // namespace lockstep::inline v0
