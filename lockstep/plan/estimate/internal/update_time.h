// Measured factors of a step's parts, and the optimizer's update time for a rank's own elements.
#pragma once

#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/machine/machine.h"
#include "lockstep/plan/machine/stack.h"

namespace lockstep::inline v0::plan::internal {

// By how much a part's roofline is multiplied: parts are measured in float32, and 1 holds for others.
PartFactors measured_factors(const Layout& layout, const Stack& stack, StepPart part,
                             const PartShape& shape);

// In seconds.
double update_time(double elements, const Layout& layout, const Machine& machine,
                   const Stack& stack);

}  // namespace lockstep::inline v0::plan::internal
