// `lockstep plan --model ...`: memory and time of a training job, and its best layouts.
#pragma once

#include "lockstep/cli/plan/flags.h"

namespace lockstep::inline v0::cli {

// Prints, and writes the files that are asked for. Returns the exit code: 0, or 1 where --fits was
// asked and the job does not fit.
// Throws: UsageError, InvalidArgument; SystemError where a file cannot be written.
int plan_job_command(const PlanFlags& flags, const PlanParser& parser);

}  // namespace lockstep::inline v0::cli
