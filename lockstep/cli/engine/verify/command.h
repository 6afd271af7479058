// lockstep verify
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// Every product of ways to divide a language model, against one process (verify/equality_matrix.h). Exit code 0: all
// hold, 1: some do not, 2: bad usage.
int verify_command(const Arguments& words);

}  // namespace lockstep::engine
