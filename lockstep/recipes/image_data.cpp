#include "lockstep/recipes/image_data.h"

#include <ATen/ops/zeros.h>
#include <stdlib.h>

#include <cerrno>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/data/cifar10.h"
#include "lockstep/data/digits.h"
#include "lockstep/data/mnist.h"
#include "lockstep/data/shapes.h"

namespace lockstep::inline v0 {
namespace {

bool is_cifar(const std::string& recipe) {
  return recipe == "cifar";
}

// Goes with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw system_error("cannot make " + name, errno);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

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

RecipeCounts validate_image_data(const TrainConfig& config) {
  if (is_cifar(config.recipe)) {
    const auto sizes = data::validate_cifar10(config.data);
    return {.train = sizes.train, .held_out = sizes.test};
  }
  const auto sizes = data::validate_mnist(config.data);
  return {.train = sizes.train, .held_out = sizes.test};
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

ImageData built_in_test_data(const TrainConfig& config) {
  const TemporaryFolder folder;
  // A test picture does not depend on how many others there are.
  if (is_cifar(config.recipe)) {
    data::generate_shapes(folder.path(), {.train = 1});
  } else {
    data::generate_digits(folder.path(), {.train = 1});
  }
  return load_image_data(config, folder.path(), ImageParts::kTest);
}

std::filesystem::path example_file(const TrainConfig& config) {
  const std::filesystem::path path = config.data;
  return is_cifar(config.recipe) ? data::cifar10_test_file(path) : data::mnist_test_file(path);
}

}  // namespace lockstep::inline v0
