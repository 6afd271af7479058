// SGD with momentum over flat memory, with one fused kernel per group of parameters of one dtype.
//
// torch::optim::SGD with another step(): memory, gradients, files and errors as in adam.h, the
// formulas and the roundings as in docs/optimizers.md.
#pragma once

#include <torch/optim/sgd.h>

#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/optim/fused_optimizer.h"

namespace lockstep::inline v0::optim {

// SGD with one kernel for each group. Constructors as those of torch::optim::SGD.
class LOCKSTEP_API FusedSGD : public FusedOptimizer<torch::optim::SGD, torch::optim::SGDOptions> {
 public:
  explicit FusedSGD(std::vector<at::Tensor> parameters, torch::optim::SGDOptions options,
                    FusedOptions fused = {})
      : FusedOptimizer(std::move(parameters), std::move(options), fused) {}
  explicit FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    torch::optim::SGDOptions defaults, FusedOptions fused = {})
      : FusedOptimizer(groups, std::move(defaults), fused) {}

  using FusedOptimizer::step;
  StepResult step(const StepOptions& options) override;
};

}  // namespace lockstep::inline v0::optim
