#include "lockstep/train/image_data.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "lockstep/data/cifar10.h"
#include "lockstep/data/digits.h"
#include "lockstep/data/mnist.h"
#include "lockstep/data/shapes.h"

namespace lockstep {
namespace {

bool is_cifar(const std::string& recipe) {
  return recipe == "cifar";
}

}  // namespace

ImageData load_image_data(const TrainConfig& config, const std::filesystem::path& path,
                          ImageParts parts) {
  const bool load_train = parts == ImageParts::kAll;
  if (is_cifar(config.recipe)) {
    auto sets = data::cifar10(path, {.load_train = load_train});
    return {std::move(sets.train), std::move(sets.test), std::move(sets.classes)};
  }
  auto sets =
      data::mnist(path, {.mean = config.mean, .stddev = config.stddev, .load_train = load_train});
  return {std::move(sets.train), std::move(sets.test), {}};
}

ImageCounts validate_image_data(const TrainConfig& config) {
  if (is_cifar(config.recipe)) {
    const auto sizes = data::validate_cifar10(config.data);
    return {sizes.train, sizes.test};
  }
  const auto sizes = data::validate_mnist(config.data);
  return {sizes.train, sizes.test};
}

data::ImageDataset preprocessed(const TrainConfig& config, const at::Tensor& images) {
  const at::Tensor labels = at::zeros({images.size(0)}, at::kLong);
  if (!is_cifar(config.recipe)) return {images, labels, {config.mean}, {config.stddev}};
  const data::Cifar10Options options;
  return {images, labels, options.mean, options.stddev};
}

void generate_image_data(const std::string& recipe, const std::filesystem::path& directory) {
  if (is_cifar(recipe)) {
    data::generate_shapes(directory);
  } else {
    data::generate_digits(directory);
  }
}

std::filesystem::path example_file(const TrainConfig& config) {
  const std::filesystem::path path = config.data;
  return is_cifar(config.recipe) ? data::cifar10_test_file(path) : data::mnist_test_file(path);
}

}  // namespace lockstep
