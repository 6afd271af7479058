// Loads a model from a checkpoint.
#pragma once

#include <filesystem>

#include "lockstep/model/image_model.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep::inline v0::engine {

struct SavedModel {
  ImageModel model = nullptr;  // in evaluation mode
  TrainConfig config;          // the training's, with its preprocessing
  std::filesystem::path path;
};

// `path` is a checkpoint, or the output directory of a run, whose best one is loaded.
// Throws: CheckpointError, InvalidArgument.
SavedModel load_model(const std::filesystem::path& path);

}  // namespace lockstep::inline v0::engine
