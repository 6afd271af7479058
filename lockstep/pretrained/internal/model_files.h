// What directories of Hugging Face's form have in common, whatever model is in them.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/flat/named_tensors.h"

namespace lockstep::internal {

inline constexpr const char* kModelConfig = "config.json";

// The text of config.json. Throws CheckpointError that names it where it is missing.
std::string read_model_config(const std::filesystem::path& directory);
// "bert" of a config.json with "model_type": "bert"; "" where there is none.
std::string model_type(const std::filesystem::path& directory);

// All tensors, by the names of the files, "module." left out: of model.safetensors, of what its index
// names, or of pytorch_model.bin; of a checkpoint compared with its checksums. Throws CheckpointError.
NamedTensors read_model_tensors(const std::filesystem::path& directory);

}  // namespace lockstep::internal
