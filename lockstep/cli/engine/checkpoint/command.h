// lockstep checkpoint
#pragma once

#include "lockstep/cli/engine/command_line.h"

namespace lockstep::engine {

// lockstep checkpoint inspect | convert | consolidate | reshard
int checkpoint_command(const Arguments& arguments);

// What a checkpoint or a file of tensors holds. Exit code 2 if a file is damaged.
int checkpoint_inspect(const Arguments& arguments);
// Tensors of any file that is understood, as a safetensors file.
int checkpoint_convert(const Arguments& words);
// The same checkpoint in one file of a kind, or in several.
int checkpoint_consolidate(const Arguments& words);
int checkpoint_reshard(const Arguments& words);

}  // namespace lockstep::engine
