// A file of tensors in either form, safetensors or Python's torch.save; and models that are too
// large for one file: several of them and an index beside them, as Hugging Face's libraries write
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

namespace lockstep {

// kShardedPt: at least one of the index's files is of torch.save. kSlicedSafetensors: tensors in slices
// (slice_index.h), put together.
enum class TensorFileKind {
  kSafetensors,
  kShardedSafetensors,
  kSlicedSafetensors,
  kPt,
  kShardedPt
};

struct TensorFile {
  TensorFileKind kind = TensorFileKind::kSafetensors;
  std::filesystem::path path;  // the file, or the index
  Safetensors contents;
  std::vector<std::string> left_out;  // of torch.save's: what is no tensor, number or text
  std::string found_in;  // of torch.save's: the key of the state dict; of several, the first's
};

// A file that is no index. Which form it has is told by its bytes, not by its name. Mapped as
// read_safetensors() does; with `expected`, the whole file is read and compared first. Throws
// CheckpointError of one line that names the file.
TensorFile read_unsharded(const std::filesystem::path& path,
                          const std::optional<FileSum>& expected = std::nullopt);

// The "weight_map" of an index: tensor name to file name. Other members, such as "metadata", are
// not needed. Throws CheckpointError of one line that begins with `source`, also for a file name
// that leads out of the directory.
std::map<std::string, std::string> parse_weight_map(std::string_view json,
                                                    const std::string& source);

// All tensors of the index's files as one, each file as read_unsharded() does; the metadata of the
// files together. `sums`: the checksums of those files that are known, the index's own among them.
// Throws CheckpointError of one line that names the file: a file or a tensor of the index is
// missing, or two files have a tensor of the same name.
TensorFile read_sharded(const std::filesystem::path& index, const FileSums& sums = {});

}  // namespace lockstep
