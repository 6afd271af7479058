#include "lockstep/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include "lockstep/optim/internal/flat_groups.h"
#include "lockstep/optim/internal/fused_engine.h"

namespace lockstep::inline v0::optim {
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
  const auto with = [&](const auto& learning_rate) {
    at::_fused_sgd_(launch.weights, launch.gradients,
                    launch.states.empty() ? none : launch.states[0], options.weight_decay(),
                    options.momentum(), learning_rate, options.dampening(), options.nesterov(),
                    /*maximize=*/false, launch.first, launch.divisor, launch.found_inf);
  };
  launch.learning_rate.defined() ? with(launch.learning_rate) : with(options.lr());
}

}  // namespace

StepResult FusedSGD::step(const StepOptions& options) {
  static const SgdStateKind kind;
  return internal::fused_step(*this, flat(), left_out(), kind, options, launch_sgd,
                              {.in_graphs = true});
}

}  // namespace lockstep::inline v0::optim
