// DistributedOptimizer: one optimizer for parameters of several processes. Each owner has its own
// optimizer, for its part, and steps with the gradients of a context.
//
//   rpc::add_optimizers(registry);                        // on every process that owns parameters
//   std::vector<rpc::RRef<at::Tensor>> parameters = ...;  // e.g. the result of a function
//   rpc::DistributedOptimizer optimizer(agent, parameters,
//                                       {.name = "sgd", .options = {{"lr", 0.05}}});
//   {
//     rpc::AutogradContext context(agent);
//     context.backward({loss(...)});
//     optimizer.step(context);
//   }
//
// Steps of several contexts may run at once (Hogwild; Recht et al., "Hogwild!: A Lock-Free Approach
// to Parallelizing Stochastic Gradient Descent", 2011, but here one at a time per owner). A step
// uses its context's gradients, and leaves grad() of the parameters unchanged.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/rpc/agent.h"
#include "lockstep/rpc/autograd.h"

namespace lockstep::inline v0::rpc {

// The optimizer's name, and its options by PyTorch's names: numbers as they are, flags as 0 or 1.
struct LOCKSTEP_API OptimizerRecipe {
  std::string name = "sgd";
  std::map<std::string, double> options = {};
  // For Codec.
  template <typename Visit>
  void reflect(Visit&& visit) {
    visit("name", name);
    visit("options", options);
  }
};

// Makes an optimizer of an owner's parameters.
// Throws: InvalidArgument for an unknown name or option.
using OptimizerMaker = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<at::Tensor> parameters, const OptimizerRecipe& recipe)>;

// torch's "sgd" (lr, momentum, dampening, weight_decay, nesterov), "adam" and "adamw" (lr, beta1,
// beta2, eps, weight_decay, amsgrad), "adagrad" (lr, lr_decay, weight_decay, eps), "rmsprop" (lr,
// alpha, eps, weight_decay, momentum, centered).
LOCKSTEP_API std::unique_ptr<torch::optim::Optimizer> make_torch_optimizer(
    std::vector<at::Tensor> parameters, const OptimizerRecipe& recipe);

// Registers the functions that an owner needs ("optimizer.make", "optimizer.step"). `maker` adds
// other optimizers.
LOCKSTEP_API void add_optimizers(Registry& registry, OptimizerMaker maker = make_torch_optimizer);

// An owner's part; the result of "optimizer.make".
class LOCKSTEP_API OwnedOptimizer {
 public:
  // `turn` is shared by all optimizers of this process, since several may step the same parameters.
  OwnedOptimizer(std::vector<at::Tensor> parameters,
                 std::unique_ptr<torch::optim::Optimizer> optimizer,
                 std::shared_ptr<std::mutex> turn);
  // One step with the gradients of the context that the calling thread serves. Parameters without a
  // gradient are unchanged.
  void step();

 private:
  std::shared_ptr<std::mutex> turn_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

class LOCKSTEP_API DistributedOptimizer {
 public:
  // Makes the owners' optimizers, in the order of the parameters, and waits for them.
  // Throws: InvalidArgument (no parameters), RemoteError, PeerLost, Timeout.
  DistributedOptimizer(Agent agent, const std::vector<RRef<at::Tensor>>& parameters,
                       const OptimizerRecipe& recipe);

  // One step of all owners concurrently, with the gradients of the context, which this thread must
  // be in. Returns when all have stepped.
  // Throws: the first owner's error; the others have stepped.
  void step(const AutogradContext& context);

 private:
  Agent agent_;
  std::vector<RRef<OwnedOptimizer>> owned_;
};

}  // namespace lockstep::inline v0::rpc
