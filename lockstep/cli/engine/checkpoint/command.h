// lockstep checkpoint
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::inline v0::engine {

// lockstep checkpoint inspect | convert | consolidate | reshard
int checkpoint_command(const Arguments& arguments);

// Prints the contents of a checkpoint or a file of tensors. Exit code 2 if a file is damaged.
int checkpoint_inspect(const Arguments& arguments);
// Writes the tensors of any known file as a safetensors file.
int checkpoint_convert(const Arguments& words);
// Write a checkpoint with one file of each kind, or with several.
int checkpoint_consolidate(const Arguments& words);
int checkpoint_reshard(const Arguments& words);

}  // namespace lockstep::inline v0::engine
