#include "lockstep/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "lockstep/optim/internal/adam_state.h"

namespace lockstep::inline v0::optim {
namespace {

template <typename Options, typename Kernel>
void launch_adam(internal::Launch& launch, const Kernel& kernel) {
  const auto& options = static_cast<const Options&>(*launch.options);
  const std::vector<at::Tensor> none;
  const auto with = [&](const auto& learning_rate) {
    kernel(launch.weights, launch.gradients, launch.states[0], launch.states[1],
           options.amsgrad() ? launch.states[2] : none, launch.steps, learning_rate,
           std::get<0>(options.betas()), std::get<1>(options.betas()), options.weight_decay(),
           options.eps(), options.amsgrad(), /*maximize=*/false, launch.divisor, launch.found_inf);
  };
  launch.learning_rate.defined() ? with(launch.learning_rate) : with(options.lr());
}

}  // namespace

StepResult FusedAdamW::step(const StepOptions& options) {
  static const internal::AdamStateKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState>
      kind;
  return internal::fused_step(
      *this, flat(), left_out(), kind, options,
      [](internal::Launch& launch) {
        launch_adam<torch::optim::AdamWOptions>(
            launch, [](const auto&... arguments) { at::_fused_adamw_(arguments...); });
      },
      {.in_graphs = true});
}

StepResult FusedAdam::step(const StepOptions& options) {
  static const internal::AdamStateKind<torch::optim::AdamOptions, torch::optim::AdamParamState>
      kind;
  return internal::fused_step(
      *this, flat(), left_out(), kind, options,
      [](internal::Launch& launch) {
        launch_adam<torch::optim::AdamOptions>(
            launch, [](const auto&... arguments) { at::_fused_adam_(arguments...); });
      },
      {.in_graphs = true});
}

}  // namespace lockstep::inline v0::optim
