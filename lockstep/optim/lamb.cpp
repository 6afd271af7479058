#include "lockstep/optim/lamb.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/optim/internal/adam_state.h"

namespace lockstep::inline v0::optim {
namespace {

// Launches everything at once, without waiting on the host; this needs memory for the updates of
// all parameters.
void launch_lamb_on_device(internal::Launch& launch, const torch::optim::AdamWOptions& options) {
  const auto [beta1, beta2] = options.betas();
  int64_t all = 0;
  for (const at::Tensor& weight : launch.weights) all += weight.numel();
  const at::Tensor scratch = at::zeros({all}, launch.weights.front().options());
  std::vector<at::Tensor> minus_updates;
  int64_t begin = 0;
  for (const at::Tensor& weight : launch.weights) {
    minus_updates.push_back(scratch.narrow(0, begin, weight.numel()));
    begin += weight.numel();
  }
  at::_fused_adamw_(minus_updates, launch.gradients, launch.states[0], launch.states[1], {},
                    launch.steps, /*lr=*/1.0, beta1, beta2, /*weight_decay=*/0.0, options.eps(),
                    /*amsgrad=*/false, /*maximize=*/false, launch.divisor, launch.found_inf);
  if (options.weight_decay() != 0)
    at::_foreach_add_(minus_updates, launch.weights, -options.weight_decay());
  const at::Tensor weight_norms = at::stack(at::_foreach_norm(launch.weights, 2, at::kDouble)),
                   update_norms = at::stack(at::_foreach_norm(minus_updates, 2, at::kDouble));
  at::Tensor rates = at::where(weight_norms.gt(0).logical_and_(update_norms.gt(0)),
                               weight_norms / update_norms, 1.0)
                         .mul_(options.lr());
  // If the step is skipped, the kernel has written nothing, and nothing is added here.
  if (launch.found_inf) rates.mul_(1 - *launch.found_inf);
  rates = rates.to(scratch.scalar_type());
  for (size_t i = 0; i < launch.weights.size(); ++i)
    launch.weights[i].addcmul_(minus_updates[i], rates[static_cast<int64_t>(i)]);
}

void launch_lamb(internal::Launch& launch) {
  const auto& options = static_cast<const torch::optim::AdamWOptions&>(*launch.options);
  if (options.amsgrad()) throw InvalidArgument("Lamb: amsgrad is not part of LAMB");
  if (!launch.weights.front().is_cpu()) return launch_lamb_on_device(launch, options);
  const auto [beta1, beta2] = options.betas();
  int64_t largest = 0;
  for (const at::Tensor& weight : launch.weights) largest = std::max(largest, weight.numel());
  const at::Tensor scratch = at::empty({largest}, launch.weights.front().options());
  for (size_t i = 0; i < launch.weights.size(); ++i) {
    at::Tensor& weight = launch.weights[i];
    // AdamW's kernel on a weight of zero, at rate 1 and without decay, yields Adam's direction with
    // the opposite sign.
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
  static const internal::AdamStateKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState>
      kind;
  return internal::fused_step(*this, flat(), left_out(), kind, options, launch_lamb,
                              {.one_parameter_a_stretch = true});
}

}  // namespace lockstep::inline v0::optim
