// What directories of Hugging Face's form have in common, whatever model is in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::internal {

inline constexpr const char* kModelConfig = "config.json";

// The text of config.json. Throws CheckpointError that names it where it is missing.
std::string read_model_config(const std::filesystem::path& directory);
// "bert" of a config.json with "model_type": "bert"; "" where there is none.
std::string model_type(const std::filesystem::path& directory);

// Throws CheckpointError where config.json tells of more than the files hold: `layers` layers, whose tensors'
// names have `marker` and a number ("layers.0."), and `parameters` in all. Of the files the headers alone are
// read. To be called before a model is made: sizes in a file are anyone's, and would take any memory.
void check_described(const std::filesystem::path& directory, std::string_view marker,
                     int64_t layers, int64_t parameters);

// All tensors, by the names of the files, wrappers' prefixes (strip_wrapper_prefixes()) left out: of
// the file that find_tensor_file() names, compared with its checksum if there is one. Throws CheckpointError.
NamedTensors read_model_tensors(const std::filesystem::path& directory);
// The same as it lies in the files, mapped, row by row: of a model in slices nothing is put together.
SlicedTensors read_model_parts(const std::filesystem::path& directory);

}  // namespace lockstep::internal
