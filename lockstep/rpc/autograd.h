// AutogradContext: backward through calls. What is computed inside a context may depend on tensors of several processes; its
// backward runs in all of them, and each keeps the gradients of its own parameters in the context, apart from grad(),
// so that several contexts may be under way at once. Gradients of one parameter are summed in one order, whichever
// thread ends first: within a call as autograd does, then those of the calls, the later call's first, and behind them what came back
// late. So the bits are the same in every run, and those of one process where each call uses a parameter once. Not so for calls that
// coroutines make side by side, for three parts or more of a graph that several calls have built at their owner, and for a part that runs
// twice in one backward() (retain_graph).
//
//   rpc::AutogradContext context(agent);                                // this thread's, until it goes
//   at::Tensor h = encoder.rpc_sync<at::Tensor>("forward", x);          // recorded
//   at::Tensor loss = torch::cross_entropy_loss(head->forward(h), y);
//   context.backward({loss});
//   optimizer.step(context);                                            // DistributedOptimizer
//
// Recorded are calls whose tensors require gradients, or whose results do, made by this thread while the context lives, and by the
// functions that serve them. to_here() is such a call.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/rpc/agent.h"

namespace lockstep::rpc {
namespace internal {
class ContextState;
}

class AutogradContext {
 public:
  // Begins to record this thread's calls. Throws InvalidArgument inside another context.
  explicit AutogradContext(Agent agent);
  // Ends it; tells those who have a part in it, without waiting, that they may forget it. On the thread that made it.
  ~AutogradContext();
  AutogradContext(const AutogradContext&) = delete;
  AutogradContext& operator=(const AutogradContext&) = delete;

  // Adds the gradients of the sum of the losses (scalars) to the context, here and in all processes that have a part. The graphs are
  // freed unless `retain_graph`. Throws InvalidArgument (a loss that is no scalar, or needs no gradient), RemoteError,
  // PeerLost, Timeout; the gradients are incomplete then: leave the context.
  void backward(const std::vector<at::Tensor>& losses, bool retain_graph = false);

  // Of this process's parameters, in no order: each with its gradient. After backward().
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients() const;
  at::Tensor gradient_of(const at::Tensor& parameter) const;  // undefined: none

  const std::shared_ptr<internal::ContextState>& state() const { return state_; }

 private:
  Agent agent_;
  std::shared_ptr<internal::ContextState> state_;
  uint64_t rounds_ = 0;  // of passes
};

// In a function that serves a call of a context: the gradients that this process has in it, as AutogradContext::gradients().
std::vector<std::pair<at::Tensor, at::Tensor>> context_gradients();

}  // namespace lockstep::rpc
