// A model from a checkpoint, ready to be used.
#pragma once

#include <filesystem>

#include "lockstep/model/simple_cnn.h"
#include "lockstep/train/train_config.h"

namespace lockstep::engine {

struct SavedModel {
  SimpleCnn model;     // in evaluation mode
  TrainConfig config;  // it was trained by; mean and stddev are its preprocessing
  std::filesystem::path path;
};

// `path`: a checkpoint, or the output directory of a run (then its best one). Throws
// CheckpointError, InvalidArgument.
SavedModel load_model(const std::filesystem::path& path);

}  // namespace lockstep::engine
