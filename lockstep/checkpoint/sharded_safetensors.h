// A directory's model as safetensors: one file, or several with an index, of whole tensors (sharded_tensors.h) or of
// slices (slice_index.h).
#pragma once

#include <filesystem>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/sliced_tensors.h"

namespace lockstep {

// The tensors of model.safetensors, or of what model.safetensors.index.json or model.slices.json names; compared with
// those of `sums` that are known. What lies in slices is put together. Throws CheckpointError, also if there is none
// of these.
Safetensors read_model_safetensors(const std::filesystem::path& directory,
                                   const FileSums& sums = {});

// The same as it lies in the files, mapped.
SlicedTensors read_model_slices(const std::filesystem::path& directory, const FileSums& sums = {});

// Whether there is one of these.
bool has_model_safetensors(const std::filesystem::path& directory);

}  // namespace lockstep
