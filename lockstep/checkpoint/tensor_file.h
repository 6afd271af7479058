// Tensors from whatever holds them: a safetensors file, a file of torch.save, the index of several
// of these, or a directory with one of them.
#pragma once

#include <filesystem>
#include <optional>

#include "lockstep/checkpoint/sharded_tensors.h"

namespace lockstep {

// An index is told by its name, which ends in ".json", one of slices in ".slices.json", other files
// by their bytes. Of a directory the file that find_tensor_file() names is read, and compared with its
// checksums.json if there is one; that file is TensorFile::path. Tensors are mapped
// (read_safetensors()). Throws CheckpointError of one line that names the file.
TensorFile read_tensor_file(const std::filesystem::path& path);

// The first of model.safetensors, model.safetensors.index.json, model.slices.json, pytorch_model.bin
// and pytorch_model.bin.index.json that is in the directory; nothing if there is none.
std::optional<std::filesystem::path> find_tensor_file(const std::filesystem::path& directory);

}  // namespace lockstep
