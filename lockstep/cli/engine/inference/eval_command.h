// lockstep eval
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::inline v0::engine {

// Measures the accuracy of a checkpoint on a test set, in all and by class; each sample is counted
// once.
int eval_command(const Arguments& arguments);

}  // namespace lockstep::inline v0::engine
