// The step of one bucket's part. Not used directly.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "lockstep/parallel/zero/internal/zero_buckets.h"

namespace lockstep::internal {

// Updates this rank's part of the parameters and its state by own_gradient / divisor, and counts
// the step for all of the bucket's parameters.
void update_part(ZeroBucket& bucket, std::vector<ZeroParameter>& parameters, double divisor,
                 const torch::optim::OptimizerOptions& options);

}  // namespace lockstep::internal
