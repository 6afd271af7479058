#include "lockstep/pretrained/internal/model_files.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::internal {
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

namespace {

// The stored objects with their sizes, from the files' headers: no values are read, except for the
// checksums of torch.save's files.
std::vector<std::pair<std::string, int64_t>> stored_sizes(const fs::path& file) {
  std::vector<std::pair<std::string, int64_t>> sizes;
  if (file.filename().string().ends_with(".slices.json")) {
    for (const auto& [name, tensor] : read_slices(file.parent_path(), file.filename(), {}).tensors)
      sizes.emplace_back(name, tensor.numel());
  } else {
    for (const auto& [name, tensor] : read_tensor_file(file).contents.tensors)
      sizes.emplace_back(name, tensor.numel());
  }
  return sizes;
}

// The number after `marker`; "" if there is none.
std::string layer_of(std::string_view name, std::string_view marker) {
  const size_t at = name.find(marker);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = name.substr(at + marker.size());
  return std::string(rest.substr(0, rest.find('.')));
}

}  // namespace

void check_described(const fs::path& directory, std::string_view marker, int64_t layers,
                     int64_t parameters) {
  const auto file = find_tensor_file(directory);
  if (!file) return;  // reported when the file is read
  int64_t elements = 0;
  std::set<std::string> stored;
  for (const auto& [name, numel] : stored_sizes(*file)) {
    elements += numel;
    if (std::string layer = layer_of(name, marker); !layer.empty()) stored.insert(std::move(layer));
  }
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError((directory / kModelConfig).string() + ": " + what + "; " +
                          file->filename().string() + " does not belong to it");
  };
  if (layers > static_cast<int64_t>(stored.size()))
    refuse("num_hidden_layers is " + std::to_string(layers) + ", and there are tensors of " +
           std::to_string(stored.size()) + " layers");
  // Missing tensors are listed by name when the parameters are read; this check only protects the
  // memory.
  constexpr int64_t kSmall = 1 << 20;
  if (parameters / 2 > elements + kSmall)
    refuse("its sizes are of a model of " + std::to_string(parameters) +
           " parameters, and there are tensors of " + std::to_string(elements) + " elements");
}

NamedTensors read_model_tensors(const fs::path& directory) {
  // A checkpoint may be replaced while it is read.
  NamedTensors all =
      checkpoint_exists(directory)
          ? read_checkpoint(directory, CheckpointParts::kModelAndConfig).model.tensors
          : read_tensor_file(directory).contents.tensors;
  strip_wrapper_prefixes(&all);
  return all;
}

SlicedTensors read_model_parts(const fs::path& directory) {
  SlicedTensors all;
  if (checkpoint_exists(directory)) {
    all = read_checkpoint(directory, CheckpointParts::kModelAndConfig, ModelForm::kSlices)
              .model_slices;
  } else {
    Safetensors stored = read_tensor_file(directory).contents;
    // torch.save stores a transposed view as such.
    for (auto& entry : stored.tensors) entry.second = entry.second.contiguous();
    all = stored;
  }
  NamedTensors names;
  for (const auto& [name, tensor] : all.tensors) names.emplace_back(name, at::Tensor());
  strip_wrapper_prefixes(&names);
  SlicedTensors result;
  auto name = names.begin();
  for (auto& entry : all.tensors) result.tensors.emplace((name++)->first, std::move(entry.second));
  return result;
}

}  // namespace lockstep::inline v0::internal
