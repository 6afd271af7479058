// Context parallelism of a model of any modules, from outside: each rank has some of the tokens of every sequence, and
// its attention looks at all of them. PyTorch's torch.distributed.tensor.experimental.context_parallel() does it so.
//
//   parallelize(*model, mesh["tensor"], plan, {.context = mesh["context"]});
//   {
//     const ContextScope scope(mesh["context"], ContextWay::kRing);
//     const at::Tensor logits = model->forward(own_tokens(mesh["context"], ids));
//     loss_of(logits, own_tokens(mesh["context"], targets)).backward();   // the mean over the ranks is the whole batch's
//   }
//   average_gradients(*model, mesh.over({"data", "context"}));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/hooks/thread_attention.h"
#include "lockstep/parallel/context/context_layout.h"

namespace lockstep::inline v0 {

// While it lives, at::scaled_dot_product_attention() of [batch, heads, own tokens, width] on this thread is attention to
// the tokens of all ranks of `comm`. Causal attention goes by `way`; other attention by heads, which the number of
// ranks divides. A causal ring is for the CPU's types (context_attention.h).
//
// Requires: queries, keys and values of the same tokens; no mask, no dropout of weights. Those throw InvalidArgument.
// Collective: every such call, and its backward, in one order on all ranks. One thread, the communicator's; do not make
// two at once on a thread. A layer that is computed again in backward has to find it alive, on the thread that does.
class LOCKSTEP_API ContextScope {
 public:
  explicit ContextScope(const Communicator& comm, ContextWay way = ContextWay::kRing);

 private:
  hooks::ThreadAttention attention_;
};

// This rank's tokens of a batch's ids or targets [batch, tokens, ...]. Sends nothing. Throws
// InvalidArgument unless twice the number of ranks divides the tokens.
LOCKSTEP_API at::Tensor own_tokens(const Communicator& comm, const at::Tensor& batch);

}  // namespace lockstep::inline v0
