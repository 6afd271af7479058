// SGD with momentum over flat memory, one fused kernel a group of parameters of one dtype.
//
// torch::optim::SGD with another step(): memory, gradients, files and errors as adam.h says, the
// formulas and the roundings as docs/optimizers.md says.
#pragma once

#include <torch/optim/sgd.h>

#include <memory>
#include <vector>

#include "lockstep/optim/fused_options.h"
#include "lockstep/optim/fused_step.h"

namespace lockstep::optim {

namespace internal {
class FlatGroups;
}  // namespace internal

class FusedSGD : public torch::optim::SGD, public FusedStep {
 public:
  explicit FusedSGD(std::vector<at::Tensor> parameters, torch::optim::SGDOptions options,
                    FusedOptions fused = {});
  explicit FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    torch::optim::SGDOptions defaults, FusedOptions fused = {});
  ~FusedSGD() override;
  FusedSGD(const FusedSGD&) = delete;
  FusedSGD& operator=(const FusedSGD&) = delete;

  at::Tensor step(LossClosure closure = nullptr) override;
  StepResult step(const StepOptions& options) override;
  void zero_grad(bool set_to_none = true);

 private:
  std::unique_ptr<internal::FlatGroups> flat_;
};

}  // namespace lockstep::optim
