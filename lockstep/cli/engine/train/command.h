// lockstep train RECIPE
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// Without a launcher it checks everything, then starts config.nproc ranks that execute it anew.
// Under a launcher it is a rank.
int train_command(const Arguments& arguments);

}  // namespace lockstep::engine
