// The share of a batch's loss, a mean, in the mean over a whole step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

// Throws InvalidArgument in the name of `who` unless `share` is a number >= 0: the share of a step
// without a target is 0 / 0, and would make gradients NaN.
inline void check_share(const std::string& who, double share) {
  if (std::isfinite(share) && share >= 0) return;
  throw InvalidArgument(who + ": the share is " + std::to_string(share) +
                        "; give this batch's part of the step's targets, 0 to 1, and leave a step "
                        "out, on all ranks, in which none has any");
}

// The loss whose gradient a batch adds to a step: with `share`, its part in the mean over all of the
// step's batches on all ranks; without, that of one of `batches` on each rank, which count alike.
inline at::Tensor weighed_loss(const at::Tensor& loss, std::optional<double> share, int64_t ranks,
                               int64_t batches) {
  if (share) return loss.mul(*share * static_cast<double>(ranks));
  return batches == 1 ? loss : loss.div(batches);
}

}  // namespace lockstep::inline v0
