// LAMB for large batches: You et al., "Large Batch Optimization for Deep Learning: Training BERT in
// 76 minutes", arXiv:1904.00962, algorithm 2.
//
// For each parameter tensor x, with Adam's moments m and v, both bias-corrected:
//   u = m / (sqrt(v) + eps) + weight_decay * x
//   x = x - lr * (|x| / |u|) * u      (ratio 1 where either norm is 0; phi is the identity)
// The authors also clip the gradients' global norm to 1: step({.max_norm = 1.0}).
//
// Options and state are AdamW's (amsgrad is refused), memory and errors as in adam.h; files name
// the optimizer "LAMB". The moments are one fused kernel per tensor; scratch memory has the size of
// the largest parameter.
#pragma once

#include <torch/optim/adamw.h>

#include <string>
#include <vector>

#include "lockstep/checkpoint/optimizer_kind.h"
#include "lockstep/core/export.h"
#include "lockstep/optim/fused_optimizer.h"

namespace lockstep::inline v0::optim {

// LAMB with the options of AdamW.
class LOCKSTEP_API Lamb : public FusedOptimizer<torch::optim::AdamW, torch::optim::AdamWOptions>,
                          public OptimizerKind {
 public:
  // eps is 1e-6 in the paper's experiments.
  explicit Lamb(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions options,
                FusedOptions fused = {});
  explicit Lamb(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                torch::optim::AdamWOptions defaults, FusedOptions fused = {});

  using FusedOptimizer::step;
  StepResult step(const StepOptions& options) override;
  std::string kind() const override { return "LAMB"; }

 private:
  void check_options();
};

}  // namespace lockstep::inline v0::optim
