// Loads the data sets of the image recipes, normalised by a configuration.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/image_dataset.h"
#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep::inline v0 {

struct ImageData {
  data::ImageDataset train;
  data::ImageDataset test;
  std::vector<std::string> classes;  // names; empty: the classes are numbers
};

enum class ImageParts { kAll, kTest };

// Loads `path` for config.recipe.
// Throws: DataError (see data/mnist.h, data/cifar10.h).
ImageData load_image_data(const TrainConfig& config, const std::filesystem::path& path,
                          ImageParts parts = ImageParts::kAll);

// Throws as load_image_data() would for config.data, without keeping the images.
RecipeCounts validate_image_data(const TrainConfig& config);

// Preprocesses images uint8 [N, C, H, W] for a model that was trained by the configuration.
data::ImageDataset preprocessed(const TrainConfig& config, const at::Tensor& images);

// Makes the recipe's built-in data set in `directory` if it is missing. Any number of processes may
// call it at once.
// Throws: as data::generate_digits() and generate_shapes().
void generate_image_data(const std::string& recipe, const std::filesystem::path& directory);

// The test set of the recipe's built-in data, for any config.data.
// Throws: SystemError if there is no room for temporary files.
ImageData built_in_test_data(const TrainConfig& config);

// A file of config.data that `lockstep predict --file` takes.
std::filesystem::path example_file(const TrainConfig& config);

}  // namespace lockstep::inline v0
