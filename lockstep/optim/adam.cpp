#include "lockstep/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "lockstep/optim/internal/adam_state.h"

namespace lockstep::optim {
namespace {

template <typename Options, typename Kernel>
void launch_adam(internal::Launch& launch, const Kernel& kernel) {
  const auto& options = static_cast<const Options&>(*launch.options);
  const std::vector<at::Tensor> none;
  kernel(launch.weights, launch.gradients, launch.states[0], launch.states[1],
         options.amsgrad() ? launch.states[2] : none, launch.steps, options.lr(),
         std::get<0>(options.betas()), std::get<1>(options.betas()), options.weight_decay(),
         options.eps(), options.amsgrad(), /*maximize=*/false, launch.divisor);
}

}  // namespace

FusedAdamW::FusedAdamW(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions options,
                       FusedOptions fused)
    : FusedAdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(options),
                 fused) {}

FusedAdamW::FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                       torch::optim::AdamWOptions defaults, FusedOptions fused)
    : torch::optim::AdamW(groups, std::move(defaults)),
      flat_(std::make_unique<internal::FlatGroups>(internal::keep_options(param_groups(), groups),
                                                   fused.flat_gradients)) {
  flat_->zero_gradients();
}

FusedAdamW::~FusedAdamW() = default;

at::Tensor FusedAdamW::step(LossClosure closure) {
  return internal::step_with_closure(closure, [this] { step(StepOptions{}); });
}

StepResult FusedAdamW::step(const StepOptions& options) {
  const internal::AdamStateKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState> kind;
  return internal::fused_step(*this, *flat_, kind, options, [](internal::Launch& launch) {
    launch_adam<torch::optim::AdamWOptions>(
        launch, [](const auto&... arguments) { at::_fused_adamw_(arguments...); });
  });
}

void FusedAdamW::zero_grad(bool set_to_none) {
  if (!flat_->flat_gradients()) return torch::optim::AdamW::zero_grad(set_to_none);
  flat_->zero_gradients();
}

FusedAdam::FusedAdam(std::vector<at::Tensor> parameters, torch::optim::AdamOptions options,
                     FusedOptions fused)
    : FusedAdam({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(options),
                fused) {}

FusedAdam::FusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     torch::optim::AdamOptions defaults, FusedOptions fused)
    : torch::optim::Adam(groups, std::move(defaults)),
      flat_(std::make_unique<internal::FlatGroups>(internal::keep_options(param_groups(), groups),
                                                   fused.flat_gradients)) {
  flat_->zero_gradients();
}

FusedAdam::~FusedAdam() = default;

at::Tensor FusedAdam::step(LossClosure closure) {
  return internal::step_with_closure(closure, [this] { step(StepOptions{}); });
}

StepResult FusedAdam::step(const StepOptions& options) {
  const internal::AdamStateKind<torch::optim::AdamOptions, torch::optim::AdamParamState> kind;
  return internal::fused_step(*this, *flat_, kind, options, [](internal::Launch& launch) {
    launch_adam<torch::optim::AdamOptions>(
        launch, [](const auto&... arguments) { at::_fused_adam_(arguments...); });
  });
}

void FusedAdam::zero_grad(bool set_to_none) {
  if (!flat_->flat_gradients()) return torch::optim::Adam::zero_grad(set_to_none);
  flat_->zero_gradients();
}

}  // namespace lockstep::optim
