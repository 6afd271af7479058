#include "lockstep/checkpoint/tensor_file.h"

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

constexpr const char* kNames[] = {"model.safetensors", "model.safetensors.index.json",
                                  "model.slices.json", "pytorch_model.bin",
                                  "pytorch_model.bin.index.json"};

TensorFile read_file(const fs::path& path, const FileSums& sums) {
  const std::string name = path.filename();
  if (name.ends_with(".slices.json")) {
    return {.kind = TensorFileKind::kSlicedSafetensors,
            .path = path,
            .contents = read_slices(path.parent_path(), name, sums).whole(),
            .left_out = {},
            .found_in = {}};
  }
  if (path.extension() == ".json") return read_sharded(path, sums);
  return read_unsharded(path, find_sum(sums, path.filename()));
}

}  // namespace

std::optional<fs::path> find_tensor_file(const fs::path& directory) {
  for (const char* name : kNames) {
    if (fs::exists(directory / name)) return directory / name;
  }
  return std::nullopt;
}

TensorFile read_tensor_file(const fs::path& path) {
  if (!fs::is_directory(path)) return read_file(path, {});
  const auto file = find_tensor_file(path);
  if (!file) {
    throw CheckpointError(path.string() +
                          ": holds no model.safetensors or pytorch_model.bin, nor the .index.json "
                          "of either; give a checkpoint or a file of tensors");
  }
  return read_file(*file, read_checksums(path));
}

}  // namespace lockstep::inline v0
