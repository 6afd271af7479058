#include "lockstep/optim/lamb.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/optim/internal/adam_state.h"

namespace lockstep::optim {
namespace {

void launch_lamb(internal::Launch& launch) {
  const auto& options = static_cast<const torch::optim::AdamWOptions&>(*launch.options);
  if (options.amsgrad()) throw InvalidArgument("Lamb: amsgrad is not part of LAMB");
  const auto [beta1, beta2] = options.betas();
  int64_t largest = 0;
  for (const at::Tensor& weight : launch.weights) largest = std::max(largest, weight.numel());
  const at::Tensor scratch = at::empty({largest}, launch.weights.front().options());
  for (size_t i = 0; i < launch.weights.size(); ++i) {
    at::Tensor& weight = launch.weights[i];
    // AdamW's kernel on a weight of zero, at rate 1 and without decay, leaves Adam's direction with
    // its sign turned.
    at::Tensor minus_update = scratch.narrow(0, 0, weight.numel()).zero_();
    at::_fused_adamw_({minus_update}, {launch.gradients[i]}, {launch.states[0][i]},
                      {launch.states[1][i]}, {}, {launch.steps[i]}, /*lr=*/1.0, beta1, beta2,
                      /*weight_decay=*/0.0, options.eps(), /*amsgrad=*/false, /*maximize=*/false,
                      launch.divisor);
    if (options.weight_decay() != 0) minus_update.add_(weight, -options.weight_decay());
    const double weight_norm = global_norm({weight});
    const double update_norm = global_norm({minus_update});
    const double ratio = weight_norm > 0 && update_norm > 0 ? weight_norm / update_norm : 1;
    weight.add_(minus_update, options.lr() * ratio);
  }
}

}  // namespace

Lamb::Lamb(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions options,
           FusedOptions fused)
    : FusedOptimizer(std::move(parameters), std::move(options), fused) {
  check_options();
}

Lamb::Lamb(const std::vector<torch::optim::OptimizerParamGroup>& groups,
           torch::optim::AdamWOptions defaults, FusedOptions fused)
    : FusedOptimizer(groups, std::move(defaults), fused) {
  check_options();
}

void Lamb::check_options() {
  for (const auto& group : param_groups()) {
    if (static_cast<const torch::optim::AdamWOptions&>(group.options()).amsgrad())
      throw InvalidArgument("Lamb: amsgrad is not part of LAMB");
  }
}

StepResult Lamb::step(const StepOptions& options) {
  const internal::AdamStateKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState> kind;
  return internal::fused_step(*this, flat(), kind, options, launch_lamb,
                              {.one_parameter_a_stretch = true});
}

}  // namespace lockstep::optim
