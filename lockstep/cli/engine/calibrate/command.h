// lockstep plan --calibrate
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::inline v0::engine {

// The `plan` of the program with libtorch: measures this machine and writes its file. Without a
// launcher it checks the arguments and starts the ranks; under a launcher it is a rank.
int calibrate_command(const Arguments& arguments);

}  // namespace lockstep::inline v0::engine
