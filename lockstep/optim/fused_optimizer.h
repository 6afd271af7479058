// FusedOptimizer: the common base of the optimizers over flat memory; adam.h describes its use.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/flat/steps_on_device.h"
#include "lockstep/optim/fused_options.h"
#include "lockstep/optim/fused_step.h"

namespace lockstep::inline v0::optim {

namespace internal {
class FlatGroups;
class LeftOutSteps;
}  // namespace internal

// A torch::optim optimizer (Torch, made with Options) whose parameters lie in flat buffers.
// Instantiated in fused_optimizer.cpp. Derived classes implement the step itself.
template <typename Torch, typename Options>
class LOCKSTEP_API FusedOptimizer : public Torch, public FusedStep, public StepsOnDevice {
 public:
  // Throw InvalidArgument for a parameter that occurs twice, shares memory with another, is sparse
  // or not floating-point.
  explicit FusedOptimizer(std::vector<at::Tensor> parameters, Options options,
                          FusedOptions fused = {});
  explicit FusedOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                          Options defaults, FusedOptions fused = {});
  ~FusedOptimizer() override;
  FusedOptimizer(const FusedOptimizer&) = delete;
  FusedOptimizer& operator=(const FusedOptimizer&) = delete;

  using FusedStep::step;
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;
  // With flat gradients, zeroes them and sets them as grad() again; otherwise torch's.
  void zero_grad(bool set_to_none = true);

  void step_unless(const at::Tensor& found_inf) override;
  void settle() const override;
  // torch's, after settle().
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  internal::FlatGroups& flat() { return *flat_; }
  internal::LeftOutSteps& left_out() { return *left_out_; }

 private:
  std::unique_ptr<internal::FlatGroups> flat_;
  std::unique_ptr<internal::LeftOutSteps> left_out_;
};

extern template class FusedOptimizer<torch::optim::SGD, torch::optim::SGDOptions>;
extern template class FusedOptimizer<torch::optim::Adam, torch::optim::AdamOptions>;
extern template class FusedOptimizer<torch::optim::AdamW, torch::optim::AdamWOptions>;

}  // namespace lockstep::inline v0::optim
