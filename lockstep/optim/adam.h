// Adam and AdamW over flat memory, one fused kernel a group of parameters of one dtype.
//
// FusedAdam (Kingma and Ba, arXiv:1412.6980) and FusedAdamW (Loshchilov and Hutter,
// arXiv:1711.05101) are torch::optim::Adam and AdamW with another step(): options, parameter
// groups, state and files are those, so that a run may go from one to the other, and all that takes
// the one takes the other. A step computes the same formulas with other roundings (libtorch's fused
// CPU kernels): see docs/optimizers.md for the difference over 100 steps.
//
// Memory: at construction the parameters move into flat buffers, one a group, dtype and device, of
// which each parameter is a view; the same tensor objects, so that modules, DDP and hooks go on.
// Make the optimizer after model->to(...), before or after DDP. Views into a parameter that were
// taken earlier no longer follow it. State lies in flat buffers too. Gradients stay where they are
// (separate, DDP's buckets, or flat: FusedOptions); those that lie as the parameters do are handed
// to the kernel as one stretch. Between gradients that are views into one storage at the
// parameters' own distances, gaps below 64 bytes are taken for padding and may be written.
//
// Not copyable, not movable. One thread at a time. Parameters without a gradient are skipped, their
// step counts included.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <utility>
#include <vector>

#include "lockstep/optim/fused_optimizer.h"

namespace lockstep::optim {

class FusedAdamW : public FusedOptimizer<torch::optim::AdamW, torch::optim::AdamWOptions> {
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

class FusedAdam : public FusedOptimizer<torch::optim::Adam, torch::optim::AdamOptions> {
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

}  // namespace lockstep::optim
