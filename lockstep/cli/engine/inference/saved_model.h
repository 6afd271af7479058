// A model from a checkpoint, ready to be used.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "lockstep/model/image_model.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep::engine {

struct SavedModel {
  ImageModel model = nullptr;  // in evaluation mode
  TrainConfig config;          // it was trained by, its preprocessing included
  std::filesystem::path path;
};

// The directory that `path` means, of those that `is_one` takes: itself, or the best or else the last
// checkpoint of a run's output directory. Nothing if there is none.
std::optional<std::filesystem::path> find_model(
    const std::filesystem::path& path,
    const std::function<bool(const std::filesystem::path&)>& is_one);

// `path`: a checkpoint, or the output directory of a run (then its best one). Throws
// CheckpointError, InvalidArgument.
SavedModel load_model(const std::filesystem::path& path);

}  // namespace lockstep::engine
