// DistributedOptimizer: one optimizer for parameters of several processes. Each owner has its own, for its part, and steps by
// the gradients of a context.
//
//   rpc::add_optimizers(registry);                                       // on every process that owns parameters
//   std::vector<rpc::RRef<at::Tensor>> parameters = ...;                 // e.g. from a function that returns them
//   rpc::DistributedOptimizer optimizer(agent, parameters, {.name = "sgd", .options = {{"lr", 0.05}}});
//   {
//     rpc::AutogradContext context(agent);
//     context.backward({loss(...)});
//     optimizer.step(context);
//   }
//
// Steps of several contexts may be under way at once (Hogwild's; Recht et al., "Hogwild!: A Lock-Free Approach to Parallelizing
// Stochastic Gradient Descent", 2011, but here one at a time for an owner): a step uses its context's gradients, and leaves grad() of the parameters as it was.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/rpc/agent.h"
#include "lockstep/rpc/autograd.h"

namespace lockstep::rpc {

// Which optimizer, and its options by PyTorch's names, numbers as they are and flags as 0 or 1.
struct OptimizerRecipe {
  std::string name = "sgd";
  std::map<std::string, double> options = {};
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("name", name);
    visit("options", options);
  }
};

// Makes an optimizer of an owner's parameters. Throws InvalidArgument for what it does not know.
using OptimizerMaker = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<at::Tensor> parameters, const OptimizerRecipe& recipe)>;

// torch's "sgd" (lr, momentum, dampening, weight_decay, nesterov), "adam" and "adamw" (lr, beta1, beta2, eps, weight_decay, amsgrad),
// "adagrad" (lr, lr_decay, weight_decay, eps), "rmsprop" (lr, alpha, eps, weight_decay, momentum, centered).
std::unique_ptr<torch::optim::Optimizer> make_torch_optimizer(std::vector<at::Tensor> parameters,
                                                              const OptimizerRecipe& recipe);

// Registers what an owner needs ("optimizer.make", "optimizer.step"); with a maker of one's own for other optimizers.
void add_optimizers(Registry& registry, OptimizerMaker maker = make_torch_optimizer);

// An owner's part; what "optimizer.make" returns.
class OwnedOptimizer {
 public:
  // `turn`: of all optimizers of this process, since several may step the same parameters.
  OwnedOptimizer(std::vector<at::Tensor> parameters,
                 std::unique_ptr<torch::optim::Optimizer> optimizer,
                 std::shared_ptr<std::mutex> turn);
  // One step by the gradients of the context that the calling thread serves. Parameters without one are left alone.
  void step();

 private:
  std::shared_ptr<std::mutex> turn_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

class DistributedOptimizer {
 public:
  // Makes the owners' optimizers, in the order of the parameters. Waits for them. Throws InvalidArgument (no parameters), RemoteError,
  // PeerLost, Timeout.
  DistributedOptimizer(Agent agent, const std::vector<RRef<at::Tensor>>& parameters,
                       const OptimizerRecipe& recipe);

  // One step of all owners side by side, by the gradients of the context, which this thread must be in; returns when all have. Throws what the first
  // of them threw; the others have stepped.
  void step(const AutogradContext& context);

 private:
  Agent agent_;
  std::vector<RRef<OwnedOptimizer>> owned_;
};

}  // namespace lockstep::rpc
