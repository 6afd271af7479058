// lockstep diff
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::inline v0::engine {

// Finds where two runs or two checkpoints differ. Exit code 0: equal, 1: different, 2: bad usage or
// input.
int diff_command(const Arguments& words);

}  // namespace lockstep::inline v0::engine
