// lockstep eval
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// The accuracy of a checkpoint on a test set, each sample counted once, in all and by class.
int eval_command(const Arguments& arguments);

}  // namespace lockstep::engine
