// The common part of directories in Hugging Face's format, whatever model they contain.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0::internal {

inline constexpr const char* kModelConfig = "config.json";

// The text of config.json. Throws CheckpointError that names the file if it is missing.
std::string read_model_config(const std::filesystem::path& directory);
// "bert" for a config.json with "model_type": "bert"; "" if there is none.
std::string model_type(const std::filesystem::path& directory);

// Throws CheckpointError if config.json describes a larger model than the files contain: `layers`
// layers, whose tensors' names have `marker` and a number ("layers.0."), and `parameters`
// parameters in all. Reads only the headers of the files. Call it before making a model, because
// the sizes in a file are not trusted and could request any amount of memory.
void check_described(const std::filesystem::path& directory, std::string_view marker,
                     int64_t layers, int64_t parameters);

// All tensors under their names in the files, without wrappers' prefixes
// (strip_wrapper_prefixes()), from the file that find_tensor_file() names, compared with its
// checksum if there is one. Throws CheckpointError.
NamedTensors read_model_tensors(const std::filesystem::path& directory);
// The same, mapped from the files row by row: slices of a model are not joined.
SlicedTensors read_model_parts(const std::filesystem::path& directory);

}  // namespace lockstep::inline v0::internal
