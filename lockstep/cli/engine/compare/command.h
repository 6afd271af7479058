// lockstep compare
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::inline v0::engine {

// Compares strategies (strategies.h); with --programs programs (programs.h); with --parallelism
// ways of dividing a language model (parallelism.h); and with --scaling alone one strategy on
// several numbers of ranks (scaling.h).
int compare_command(const Arguments& arguments);

}  // namespace lockstep::inline v0::engine
