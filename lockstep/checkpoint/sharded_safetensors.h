// Models that are too large for one file: several safetensors files and an index beside them, as
// Hugging Face's libraries write them (model-00001-of-00002.safetensors, ...,
// model.safetensors.index.json).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {

// The "weight_map" of an index: tensor name to file name. Other members, such as "metadata", are
// not needed. Throws CheckpointError of one line that begins with `source`, also for a file name
// that leads out of the directory.
std::map<std::string, std::string> parse_safetensors_index(std::string_view json,
                                                           const std::string& source);

// All tensors of the index's files as one, mapped as read_safetensors() does; the metadata of the
// files together. `sums`: the checksums of those files that are known. Throws CheckpointError: a
// file or a tensor of the index is missing, or two files have a tensor of the same name.
Safetensors read_sharded_safetensors(const std::filesystem::path& index, const FileSums& sums = {});

// The tensors of a directory's model: model.safetensors, or what model.safetensors.index.json
// names. Throws CheckpointError, also if there is neither.
Safetensors read_model_safetensors(const std::filesystem::path& directory,
                                   const FileSums& sums = {});

// Whether there is one or the other.
bool has_model_safetensors(const std::filesystem::path& directory);

}  // namespace lockstep
