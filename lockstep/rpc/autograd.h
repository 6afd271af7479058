// AutogradContext: backward through remote calls. Values computed inside a context may depend on
// tensors of several processes. Its backward runs in all of them, and each keeps the gradients of
// its own parameters in the context, apart from grad(), so that several contexts may be active at
// once. Gradients of one parameter are summed in a fixed order, whichever thread finishes first:
// within a call as autograd does, then those of the calls, the later call's first, and last the
// gradients that returned late. The bits are therefore the same in every run, and equal those of
// one process where each call uses a parameter once. This does not hold for calls that coroutines
// make concurrently, for three or more parts of a graph that several calls have built at their
// owner, and for a part that runs twice in one backward() (retain_graph).
//
//   rpc::AutogradContext context(agent);                        // this thread's, for its lifetime
//   at::Tensor h = encoder.rpc_sync<at::Tensor>("forward", x);  // recorded
//   at::Tensor loss = torch::cross_entropy_loss(head->forward(h), y);
//   context.backward({loss});
//   optimizer.step(context);  // DistributedOptimizer
//
// Calls are recorded if their tensors or their results require gradients, and if this thread makes
// them while the context lives, or the functions that serve them do. to_here() is such a call.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/rpc/agent.h"

namespace lockstep::inline v0::rpc {
namespace internal {
class ContextState;
}

class LOCKSTEP_API AutogradContext {
 public:
  // Starts recording this thread's calls.
  // Throws: InvalidArgument inside another context.
  explicit AutogradContext(Agent agent);
  // Ends the context, on the thread that made it. Tells the participating processes, without
  // waiting, that they may forget it.
  ~AutogradContext();
  AutogradContext(const AutogradContext&) = delete;
  AutogradContext& operator=(const AutogradContext&) = delete;

  // Adds the gradients of the sum of the losses (scalars) to the context, here and in all
  // participating processes. The graphs are freed unless `retain_graph`.
  // Throws: InvalidArgument (a loss that is not a scalar or requires no gradient), RemoteError,
  // PeerLost, Timeout. The gradients are then incomplete: leave the context.
  void backward(const std::vector<at::Tensor>& losses, bool retain_graph = false);

  // This process's parameters, in no particular order, each with its gradient. Call it after
  // backward().
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients() const;
  at::Tensor gradient_of(const at::Tensor& parameter) const;  // undefined: none

  const std::shared_ptr<internal::ContextState>& state() const { return state_; }  // for this room

 private:
  Agent agent_;
  std::shared_ptr<internal::ContextState> state_;
  uint64_t rounds_ = 0;  // number of passes
};

// In a function that serves a call of a context: the gradients that this process has in it, like
// AutogradContext::gradients().
LOCKSTEP_API std::vector<std::pair<at::Tensor, at::Tensor>> context_gradients();

}  // namespace lockstep::inline v0::rpc
