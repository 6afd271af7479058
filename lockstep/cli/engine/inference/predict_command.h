// lockstep predict
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// What a checkpoint says a picture is.
int predict_command(const Arguments& arguments);

}  // namespace lockstep::engine
