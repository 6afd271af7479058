// A directory's model as safetensors: one file, or several with an index (sharded_tensors.h).
#pragma once

#include <filesystem>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {

// The tensors of model.safetensors, or of what model.safetensors.index.json names; compared with
// those of `sums` that are known. Throws CheckpointError, also if there is neither.
Safetensors read_model_safetensors(const std::filesystem::path& directory,
                                   const FileSums& sums = {});

// Whether there is one or the other.
bool has_model_safetensors(const std::filesystem::path& directory);

}  // namespace lockstep
