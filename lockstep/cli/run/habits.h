// The flags that users of other launchers type and `lockstep run` knows but does not support, each
// with what to use instead. Pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/flag_syntax.h"

namespace lockstep::inline v0::cli {

// Flags of mpirun, accelerate, deepspeed and horovodrun, each with its `instead`.
const std::vector<Flag>& named_flags();

// Refuses mpirun's ':' between several programs. `program`: the program and its arguments.
// Throws: UsageError.
void refuse_several_programs(const SplitCommandLine& line);

}  // namespace lockstep::inline v0::cli
