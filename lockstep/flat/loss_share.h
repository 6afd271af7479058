// The share of a batch's loss, a mean, in the mean over a whole step.
#pragma once

#include <cmath>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep {

// Throws InvalidArgument in the name of `who` unless `share` is a number >= 0: the share of a step
// without a target is 0 / 0, and would make gradients NaN.
inline void check_share(const std::string& who, double share) {
  if (std::isfinite(share) && share >= 0) return;
  throw InvalidArgument(who + ": the share is " + std::to_string(share) +
                        "; give this batch's part of the step's targets, 0 to 1, and leave a step "
                        "out, on all ranks, in which none has any");
}

}  // namespace lockstep
