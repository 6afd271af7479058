// lockstep bench KIND
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// KIND: collectives, step, rpc.
int bench_command(const Arguments& arguments);

}  // namespace lockstep::engine
