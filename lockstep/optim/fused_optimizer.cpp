#include "lockstep/optim/fused_optimizer.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <utility>

#include "lockstep/optim/internal/flat_groups.h"
#include "lockstep/optim/internal/fused_engine.h"

namespace lockstep::inline v0::optim {

template <typename Torch, typename Options>
FusedOptimizer<Torch, Options>::FusedOptimizer(std::vector<at::Tensor> parameters, Options options,
                                               FusedOptions fused)
    : FusedOptimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(options),
                     fused) {}

template <typename Torch, typename Options>
FusedOptimizer<Torch, Options>::FusedOptimizer(
    const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults,
    FusedOptions fused)
    : Torch(groups, std::move(defaults)),
      flat_(std::make_unique<internal::FlatGroups>(
          internal::keep_options(this->param_groups(), groups), fused.flat_gradients)),
      left_out_(std::make_unique<internal::LeftOutSteps>()) {
  flat_->zero_gradients();
}

template <typename Torch, typename Options>
FusedOptimizer<Torch, Options>::~FusedOptimizer() = default;

template <typename Torch, typename Options>
at::Tensor FusedOptimizer<Torch, Options>::step(torch::optim::Optimizer::LossClosure closure) {
  return internal::step_with_closure(closure, [this] { step(StepOptions{}); });
}

template <typename Torch, typename Options>
void FusedOptimizer<Torch, Options>::zero_grad(bool set_to_none) {
  if (!flat_->flat_gradients()) return Torch::zero_grad(set_to_none);
  flat_->zero_gradients();
}

template <typename Torch, typename Options>
void FusedOptimizer<Torch, Options>::step_unless(const at::Tensor& found_inf) {
  step(StepOptions{.found_inf = found_inf});
}

template <typename Torch, typename Options>
void FusedOptimizer<Torch, Options>::settle() const {
  left_out_->settle(*this);
}

template <typename Torch, typename Options>
void FusedOptimizer<Torch, Options>::save(torch::serialize::OutputArchive& archive) const {
  settle();
  Torch::save(archive);
}

template <typename Torch, typename Options>
void FusedOptimizer<Torch, Options>::load(torch::serialize::InputArchive& archive) {
  settle();
  Torch::load(archive);
}

template class FusedOptimizer<torch::optim::SGD, torch::optim::SGDOptions>;
template class FusedOptimizer<torch::optim::Adam, torch::optim::AdamOptions>;
template class FusedOptimizer<torch::optim::AdamW, torch::optim::AdamWOptions>;

}  // namespace lockstep::inline v0::optim
