// Tensors from whatever holds them: a safetensors file, a file of torch.save, the index of a
// sharded model, or a directory with one of these.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {

enum class TensorFileKind { kSafetensors, kShardedSafetensors, kPt };

struct TensorFile {
  TensorFileKind kind = TensorFileKind::kSafetensors;
  std::filesystem::path path;  // the file, or the index; of a directory, the one in it
  Safetensors contents;
  std::vector<std::string> left_out;  // of torch.save's: what is no tensor, number or text
  std::string found_in;               // of torch.save's: the key of the state dict
};

// Told apart by their bytes, but for an index, whose name ends in ".json". Of a directory
// model.safetensors, or else model.safetensors.index.json, or else pytorch_model.bin is read, and
// compared with its checksums.json if there is one. Tensors are mapped (read_safetensors()). Throws
// CheckpointError of one line that names the file.
TensorFile read_tensor_file(const std::filesystem::path& path);

}  // namespace lockstep
