// lockstep diff
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// Where two runs or two checkpoints part. Exit code 0: equal, 1: different, 2: bad usage or input.
int diff_command(const Arguments& words);

}  // namespace lockstep::engine
