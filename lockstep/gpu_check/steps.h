// The process that takes its turns in the part "steps".
#pragma once

#include "lockstep/gpu_check/options.h"

namespace lockstep::inline v0::gpu_check {

// Takes steps whenever it is this process's turn (options.contest: the address of bench/turns.h),
// until there are no more turns. Returns the program's exit code.
int run_contest(const Options& options);

}  // namespace lockstep::inline v0::gpu_check
