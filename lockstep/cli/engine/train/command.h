// lockstep train RECIPE
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::inline v0::engine {

// Without a launcher it checks everything, then starts config.nproc ranks that execute it anew.
// Under a launcher it is a rank.
int train_command(const Arguments& arguments);

}  // namespace lockstep::inline v0::engine
