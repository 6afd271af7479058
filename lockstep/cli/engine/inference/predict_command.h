// lockstep predict
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::inline v0::engine {

// Predicts the class of a picture by a checkpoint.
int predict_command(const Arguments& arguments);

}  // namespace lockstep::inline v0::engine
