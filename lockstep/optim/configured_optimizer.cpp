#include "lockstep/optim/configured_optimizer.h"

#include "lockstep/optim/decay_groups.h"

namespace lockstep::inline v0::optim {

Algorithm algorithm_of(const OptimizerSpec& spec) {
  if (spec.type == OptimizerType::kSgd) {
    return torch::optim::SGDOptions(spec.lr)
        .momentum(spec.momentum)
        .dampening(spec.dampening)
        .nesterov(spec.nesterov)
        .weight_decay(spec.weight_decay);
  }
  const auto adam = [&](auto options) {
    return options.betas({spec.beta1, spec.beta2})
        .eps(spec.eps)
        .amsgrad(spec.amsgrad)
        .weight_decay(spec.weight_decay);
  };
  if (spec.type == OptimizerType::kAdam) return adam(torch::optim::AdamOptions(spec.lr));
  return adam(torch::optim::AdamWOptions(spec.lr));
}

std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const torch::nn::Module& module,
                                                                const OptimizerSpec& spec) {
  return std::visit(
      [&](const auto& options) { return decay_groups(module, options, spec.no_decay); },
      algorithm_of(spec));
}

}  // namespace lockstep::inline v0::optim
