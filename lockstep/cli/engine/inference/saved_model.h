// A model from a checkpoint, ready to be used.
#pragma once

#include <filesystem>

#include "lockstep/model/image_model.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep::engine {

struct SavedModel {
  ImageModel model = nullptr;  // in evaluation mode
  TrainConfig config;          // it was trained by, its preprocessing included
  std::filesystem::path path;
};

// `path`: a checkpoint, or the output directory of a run (then its best one).
// Throws: CheckpointError, InvalidArgument.
SavedModel load_model(const std::filesystem::path& path);

}  // namespace lockstep::engine
