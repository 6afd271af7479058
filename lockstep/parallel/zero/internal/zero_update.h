// The step of one bucket's part. Not used directly.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "lockstep/optim/step_decision.h"
#include "lockstep/parallel/zero/internal/zero_buckets.h"

namespace lockstep::inline v0::internal {

// Updates this rank's part of the parameters and its state as decided, and counts the step for all
// of the bucket's parameters. `left_out`: how many of the steps that the parameters count their
// device has skipped, one float32 there; undefined: none.
void update_part(ZeroBucket& bucket, std::vector<ZeroParameter>& parameters,
                 const optim::StepDecision& decision, const at::Tensor& left_out,
                 const torch::optim::OptimizerOptions& options);

}  // namespace lockstep::inline v0::internal
