// lockstep train RECIPE
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// Run by hand it checks everything, then starts config.nproc ranks that execute it anew; run by a
// launcher it is a rank.
int train_command(const Arguments& arguments);

}  // namespace lockstep::engine
