#include "lockstep/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include "lockstep/optim/internal/fused_engine.h"

namespace lockstep::optim {
namespace {

class SgdStateKind final : public internal::StateKind {
 public:
  size_t count(const torch::optim::OptimizerOptions& options) const override {
    return static_cast<const torch::optim::SGDOptions&>(options).momentum() != 0 ? 1 : 0;
  }
  std::unique_ptr<torch::optim::OptimizerParamState> make() const override {
    return std::make_unique<torch::optim::SGDParamState>();
  }
  at::Tensor& tensor(torch::optim::OptimizerParamState& state, size_t) const override {
    return static_cast<torch::optim::SGDParamState&>(state).momentum_buffer();
  }
};

void launch_sgd(internal::Launch& launch) {
  const auto& options = static_cast<const torch::optim::SGDOptions&>(*launch.options);
  const std::vector<at::Tensor> none;
  at::_fused_sgd_(launch.weights, launch.gradients, launch.states.empty() ? none : launch.states[0],
                  options.weight_decay(), options.momentum(), options.lr(), options.dampening(),
                  options.nesterov(),
                  /*maximize=*/false, launch.first, launch.divisor);
}

}  // namespace

FusedSGD::FusedSGD(std::vector<at::Tensor> parameters, torch::optim::SGDOptions options,
                   FusedOptions fused)
    : FusedSGD({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(options),
               fused) {}

FusedSGD::FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   torch::optim::SGDOptions defaults, FusedOptions fused)
    : torch::optim::SGD(groups, std::move(defaults)),
      flat_(std::make_unique<internal::FlatGroups>(internal::keep_options(param_groups(), groups),
                                                   fused.flat_gradients)) {
  flat_->zero_gradients();
}

FusedSGD::~FusedSGD() = default;

at::Tensor FusedSGD::step(LossClosure closure) {
  return internal::step_with_closure(closure, [this] { step(StepOptions{}); });
}

StepResult FusedSGD::step(const StepOptions& options) {
  return internal::fused_step(*this, *flat_, SgdStateKind(), options, launch_sgd);
}

void FusedSGD::zero_grad(bool set_to_none) {
  if (!flat_->flat_gradients()) return torch::optim::SGD::zero_grad(set_to_none);
  flat_->zero_gradients();
}

}  // namespace lockstep::optim
