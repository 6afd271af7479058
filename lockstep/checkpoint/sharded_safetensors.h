// A directory's model as safetensors: one file, or several with an index, of whole tensors
// (sharded_tensors.h) or of slices (slice_index.h).
#pragma once

#include <filesystem>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The tensors of model.safetensors, or of the files that model.safetensors.index.json or
// model.slices.json names, compared with the checksums in `sums`. Slices are assembled.
// Throws: CheckpointError, also if none of these files exists.
LOCKSTEP_API Safetensors read_model_safetensors(const std::filesystem::path& directory,
                                                const FileSums& sums = {});

// The same without assembling, mapped.
LOCKSTEP_API SlicedTensors read_model_slices(const std::filesystem::path& directory,
                                             const FileSums& sums = {});

// Whether one of these files exists.
LOCKSTEP_API bool has_model_safetensors(const std::filesystem::path& directory);

}  // namespace lockstep::inline v0
