// lockstep compare
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// Several ways to train the same thing (compare_methods.h); with --scaling and nothing that only
// those know, such as --methods, one of them on several numbers of ranks (compare_scaling.h).
int compare_command(const Arguments& arguments);

}  // namespace lockstep::engine
