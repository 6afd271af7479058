#include "lockstep/pretrained/internal/model_files.h"

#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/core/errors.h"

namespace lockstep::internal {
namespace fs = std::filesystem;

std::string read_model_config(const fs::path& directory) {
  const fs::path file = directory / kModelConfig;
  if (!fs::exists(file))
    throw CheckpointError(file.string() + ": is missing; give a directory of Hugging Face's form");
  return read_small_file(file);
}

std::string model_type(const fs::path& directory) {
  const fs::path file = directory / kModelConfig;
  if (!fs::is_regular_file(file)) return {};
  const auto json = nlohmann::json::parse(read_small_file(file), nullptr, false);
  if (!json.is_object() || !json.contains("model_type") || !json["model_type"].is_string())
    return {};
  return json["model_type"].get<std::string>();
}

NamedTensors read_model_tensors(const fs::path& directory) {
  // A checkpoint may be replaced while it is read.
  NamedTensors all =
      checkpoint_exists(directory)
          ? read_checkpoint(directory, CheckpointParts::kModelAndConfig).model.tensors
          : read_tensor_file(directory).contents.tensors;
  strip_module_prefix(&all);
  return all;
}

SlicedTensors read_model_parts(const fs::path& directory) {
  SlicedTensors all;
  if (checkpoint_exists(directory)) {
    all = read_checkpoint(directory, CheckpointParts::kModelAndConfig, ModelForm::kSlices)
              .model_slices;
  } else {
    Safetensors stored = read_tensor_file(directory).contents;
    // torch.save keeps a transposed view as such.
    for (auto& entry : stored.tensors) entry.second = entry.second.contiguous();
    all = stored;
  }
  NamedTensors names;
  for (const auto& [name, tensor] : all.tensors) names.emplace_back(name, at::Tensor());
  strip_module_prefix(&names);
  SlicedTensors result;
  auto name = names.begin();
  for (auto& entry : all.tensors) result.tensors.emplace((name++)->first, std::move(entry.second));
  return result;
}

}  // namespace lockstep::internal
