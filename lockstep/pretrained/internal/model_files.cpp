#include "lockstep/pretrained/internal/model_files.h"

#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/pt_file.h"
#include "lockstep/checkpoint/sharded_safetensors.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/errors.h"

namespace lockstep::internal {
namespace {
namespace fs = std::filesystem;
constexpr const char* kPickled = "pytorch_model.bin";
}  // namespace

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
  NamedTensors all;
  if (has_model_safetensors(directory)) {
    all = checkpoint_exists(directory)
              ? read_checkpoint(directory, CheckpointParts::kModelAndConfig).model.tensors
              : read_model_safetensors(directory).tensors;
  } else if (fs::exists(directory / kPickled)) {
    all = read_pt(directory / kPickled).contents.tensors;
  } else {
    throw CheckpointError(directory.string() + ": has neither model.safetensors nor " + kPickled);
  }
  strip_module_prefix(&all);
  return all;
}

}  // namespace lockstep::internal
