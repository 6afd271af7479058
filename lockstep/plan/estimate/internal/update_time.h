// The optimizer's update of a rank's own elements.
#pragma once

#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/machine/machine.h"
#include "lockstep/plan/machine/stack.h"

namespace lockstep::inline v0::plan::internal {

// In seconds.
double update_time(double elements, const Layout& layout, const Machine& machine,
                   const Stack& stack);

}  // namespace lockstep::inline v0::plan::internal
