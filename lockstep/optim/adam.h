// Adam and AdamW over flat memory, with one fused kernel per group of parameters of one dtype.
//
// FusedAdam (Kingma and Ba, arXiv:1412.6980) and FusedAdamW (Loshchilov and Hutter,
// arXiv:1711.05101) are torch::optim::Adam and AdamW with another step(): options, parameter
// groups, state and files are the same, so a run may switch from one to the other, and code for the
// one accepts the other. A step computes the same formulas with other roundings (libtorch's fused
// CPU kernels): see docs/optimizers.md for the difference over 100 steps.
//
// Memory: at construction the parameters move into flat buffers, one per group, dtype and device,
// of which each parameter is a view. The tensor objects stay the same, so modules, DDP and hooks
// keep working. Make the optimizer after model->to(...), before or after DDP. Views into a
// parameter that were taken earlier no longer follow it. State lies in flat buffers too. Gradients
// stay in their own memory (separate, DDP's buckets, or flat: FusedOptions); gradients with the
// parameters' layout are passed to the kernel as one stretch. Between gradients that are views into
// one storage at the parameters' own distances, gaps below 64 bytes count as padding and may be
// written.
//
// Parameters without a gradient are skipped, their step counts included. Not copyable, not movable.
// Thread-safety: one thread at a time.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/optim/fused_optimizer.h"

namespace lockstep::inline v0::optim {

// AdamW with one kernel for each group. Constructors as those of torch::optim::AdamW.
class LOCKSTEP_API FusedAdamW
    : public FusedOptimizer<torch::optim::AdamW, torch::optim::AdamWOptions> {
 public:
  explicit FusedAdamW(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions options = {},
                      FusedOptions fused = {})
      : FusedOptimizer(std::move(parameters), std::move(options), fused) {}
  explicit FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                      torch::optim::AdamWOptions defaults = {}, FusedOptions fused = {})
      : FusedOptimizer(groups, std::move(defaults), fused) {}

  using FusedOptimizer::step;
  StepResult step(const StepOptions& options) override;
};

// Adam with one kernel for each group. Constructors as those of torch::optim::Adam.
class LOCKSTEP_API FusedAdam
    : public FusedOptimizer<torch::optim::Adam, torch::optim::AdamOptions> {
 public:
  explicit FusedAdam(std::vector<at::Tensor> parameters, torch::optim::AdamOptions options = {},
                     FusedOptions fused = {})
      : FusedOptimizer(std::move(parameters), std::move(options), fused) {}
  explicit FusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     torch::optim::AdamOptions defaults = {}, FusedOptions fused = {})
      : FusedOptimizer(groups, std::move(defaults), fused) {}

  using FusedOptimizer::step;
  StepResult step(const StepOptions& options) override;
};

}  // namespace lockstep::inline v0::optim
