// A file of tensors in either form, safetensors or Python's torch.save; and models that are too
// large for one file: several files and an index beside them, as Hugging Face's libraries write
// them (model-00001-of-00002.safetensors, ..., model.safetensors.index.json; before that
// pytorch_model-00001-of-00002.bin, ..., pytorch_model.bin.index.json).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// kShardedPt: at least one of the index's files is of torch.save. kSlicedSafetensors: assembled
// from slices (slice_index.h).
enum class TensorFileKind {
  kSafetensors,
  kShardedSafetensors,
  kSlicedSafetensors,
  kPt,
  kShardedPt
};

// The contents of a file, or of several with an index, and where they were.
struct TensorFile {
  TensorFileKind kind = TensorFileKind::kSafetensors;
  std::filesystem::path path;  // the file, or the index
  Safetensors contents;
  // For torch.save: entries other than tensors, numbers and text.
  std::vector<std::string> left_out;
  std::string found_in;  // for torch.save: the key of the state dict; of several files, the first's
};

// Reads a file that is not an index. Its bytes, not its name, determine its form. Mapped as by
// read_safetensors(); with `expected`, the whole file is read and compared first.
// Throws: a one-line CheckpointError that names the file.
LOCKSTEP_API TensorFile read_unsharded(const std::filesystem::path& path,
                                       const std::optional<FileSum>& expected = std::nullopt);

// The "weight_map" of an index: tensor name to file name. Other members, such as "metadata", are
// not needed.
// Throws: a one-line CheckpointError that begins with `source`, also for a file name that leads out
// of the directory.
LOCKSTEP_API std::map<std::string, std::string> parse_weight_map(std::string_view json,
                                                                 const std::string& source);

// All tensors of the index's files together, each file read as by read_unsharded(), with the joined
// metadata of the files. `sums`: the known checksums of those files and of the index.
// Throws: a one-line CheckpointError that names the file: a file or a tensor of the index is
// missing, or two files have a tensor of the same name.
LOCKSTEP_API TensorFile read_sharded(const std::filesystem::path& index, const FileSums& sums = {});

}  // namespace lockstep::inline v0
