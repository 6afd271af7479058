// Reads tensors from any source: a safetensors file, a file of torch.save, the index of several of
// these, or a directory with one of them.
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/checkpoint/sharded_tensors.h"

namespace lockstep::inline v0 {

// The name identifies an index (it ends in ".json"; an index of slices in ".slices.json"), and the
// bytes identify other files. In a directory, the file that find_tensor_file() names is read and
// compared with the directory's checksums.json if there is one; that file is TensorFile::path.
// Tensors are mapped (read_safetensors()).
// Throws: a one-line CheckpointError that names the file.
TensorFile read_tensor_file(const std::filesystem::path& path);

// The first of model.safetensors, model.safetensors.index.json, model.slices.json,
// pytorch_model.bin and pytorch_model.bin.index.json that is in the directory; nullopt if there is
// none.
std::optional<std::filesystem::path> find_tensor_file(const std::filesystem::path& directory);

}  // namespace lockstep::inline v0
