// `lockstep plan --stages ...`: what a pipeline's schedule will do, and what it has done.
#pragma once

#include "lockstep/cli/plan/flags.h"

namespace lockstep::inline v0::cli {

// Prints, and writes the files that are asked for.
// Throws: UsageError, InvalidArgument; SystemError where a file cannot be written.
void show_schedule(const PlanFlags& flags);

}  // namespace lockstep::inline v0::cli
