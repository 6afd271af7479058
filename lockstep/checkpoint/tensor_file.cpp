#include "lockstep/checkpoint/tensor_file.h"

#include <utility>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/mapped_file.h"
#include "lockstep/checkpoint/pt_contents.h"
#include "lockstep/checkpoint/pt_file.h"
#include "lockstep/checkpoint/sharded_safetensors.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPtName = "pytorch_model.bin";

TensorFile read_pt_tensors(const fs::path& path) {
  PtFile file = read_pt(path);
  return {.kind = TensorFileKind::kPt,
          .path = path,
          .contents = std::move(file.contents),
          .left_out = std::move(file.left_out),
          .found_in = std::move(file.found_in)};
}

TensorFile read_index(const fs::path& path, const FileSums& sums) {
  return {.kind = TensorFileKind::kShardedSafetensors,
          .path = path,
          .contents = read_sharded_safetensors(path, sums),
          .left_out = {},
          .found_in = {}};
}

TensorFile read_directory(const fs::path& path) {
  if (!has_model_safetensors(path)) {
    if (fs::exists(path / kPtName)) return read_pt_tensors(path / kPtName);
    throw CheckpointError(path.string() +
                          ": holds no model.safetensors, model.safetensors.index.json or "
                          "pytorch_model.bin; give a checkpoint or a file of tensors");
  }
  const bool whole = fs::exists(path / "model.safetensors");
  return {.kind = whole ? TensorFileKind::kSafetensors : TensorFileKind::kShardedSafetensors,
          .path = path / (whole ? "model.safetensors" : "model.safetensors.index.json"),
          .contents = read_model_safetensors(path, read_checksums(path)),
          .left_out = {},
          .found_in = {}};
}

}  // namespace

TensorFile read_tensor_file(const fs::path& path) {
  if (fs::is_directory(path)) return read_directory(path);
  const auto file = MappedFile::open(path);
  if (looks_like_pt(file->bytes())) return read_pt_tensors(path);
  if (path.extension() == ".json") return read_index(path, {});
  return {.kind = TensorFileKind::kSafetensors,
          .path = path,
          .contents = read_safetensors(path),
          .left_out = {},
          .found_in = {}};
}

}  // namespace lockstep
