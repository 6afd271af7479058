// The step of one bucket's part. Not used directly.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "lockstep/parallel/zero/internal/zero_buckets.h"

namespace lockstep::internal {

// What gradients are divided by, and whether the step is taken. The tensors are one float32 element each, on the
// buckets' device, which decides: undefined, the host does.
struct ZeroDecision {
  double divisor = 1;
  at::Tensor device_divisor = {};  // in the divisor's place
  at::Tensor found_inf = {};       // 1: the step is left out
  at::Tensor left_out = {};        // steps that were, of those that the parameters count
};

// Updates this rank's part of the parameters and its state by own_gradient / divisor, and counts
// the step for all of the bucket's parameters.
void update_part(ZeroBucket& bucket, std::vector<ZeroParameter>& parameters,
                 const ZeroDecision& decision, const torch::optim::OptimizerOptions& options);

}  // namespace lockstep::internal
