#include "lockstep/data/mnist.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/data/idx.h"

namespace lockstep::inline v0::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 28, kClasses = 10;

struct Files {
  fs::path images, labels;
};

// "train-images" + "idx3" in any of its spellings.
fs::path find_file(const fs::path& dir, const std::string& stem, const std::string& form) {
  std::error_code ignored;
  for (const fs::path& place : {dir, dir / "MNIST" / "raw"}) {
    for (const char* gz : {"", ".gz"}) {
      for (const char* separator : {"-", "."}) {
        const fs::path candidate = place / (stem + separator + form + "-ubyte" + gz);
        if (fs::exists(candidate, ignored)) return candidate;
      }
    }
  }
  throw DataError(
      (dir / (stem + "-" + form + "-ubyte")).string() +
      ": no such file, plain or .gz; give a directory that has the four idx files of MNIST");
}

Files find_files(const fs::path& dir, const std::string& stem) {
  std::error_code ignored;
  if (!fs::is_directory(dir, ignored)) {
    throw DataError(dir.string() + ": " +
                    (fs::exists(dir, ignored) ? "not a directory" : "no such directory") +
                    "; give a directory that has the four idx files of MNIST");
  }
  return {find_file(dir, stem + "-images", "idx3"), find_file(dir, stem + "-labels", "idx1")};
}

// Returns the number of images.
int64_t check_dims(const Files& files, const std::vector<int64_t>& images,
                   const std::vector<int64_t>& labels) {
  if (images.size() != 3 || images[1] != kSide || images[2] != kSide) {
    throw DataError(files.images.string() + ": holds " + dims_text(images) +
                    " values, expected images of 28x28 (Nx28x28)");
  }
  if (labels.size() != 1) {
    throw DataError(files.labels.string() + ": holds " + dims_text(labels) +
                    " values, expected one label an image (N)");
  }
  if (images[0] != labels[0]) {
    throw DataError(files.labels.string() + ": " + std::to_string(labels[0]) + " labels for the " +
                    std::to_string(images[0]) + " images of " + files.images.filename().string() +
                    "; the two files must come from the same data set");
  }
  if (images[0] == 0)
    throw DataError(files.images.string() + ": holds no images; give a data set that has some");
  return images[0];
}

void check_labels(const Files& files, const std::vector<uint8_t>& labels) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < kClasses) continue;
    throw DataError(files.labels.string() + ": label " + std::to_string(labels[i]) + " of image " +
                    std::to_string(i) + " is outside 0..9; correct it or give another data set");
  }
}

ImageDataset load(const fs::path& dir, const std::string& stem, const MnistOptions& options) {
  const Files files = find_files(dir, stem);
  const IdxArray labels = read_idx(files.labels);
  auto images = std::make_unique<IdxArray>(read_idx(files.images));
  const int64_t count = check_dims(files, images->dims, labels.dims);
  check_labels(files, labels.values);

  at::Tensor label_tensor = at::empty({count}, at::kLong);
  std::copy(labels.values.begin(), labels.values.end(), label_tensor.mutable_data_ptr<int64_t>());
  IdxArray* const owner = images.release();  // owned by the tensor from here on
  at::Tensor image_tensor = at::from_blob(
      owner->values.data(), {count, 1, kSide, kSide}, [owner](void*) { delete owner; }, at::kByte);
  return ImageDataset(std::move(image_tensor), std::move(label_tensor), {options.mean},
                      {options.stddev});
}

int64_t validate(const fs::path& dir, const std::string& stem) {
  const Files files = find_files(dir, stem);
  const IdxArray labels = read_idx(files.labels);
  const int64_t count = check_dims(files, check_idx(files.images), labels.dims);
  check_labels(files, labels.values);
  return count;
}

}  // namespace

Mnist mnist(const fs::path& path, const MnistOptions& options) {
  Mnist sets;
  if (options.load_train) sets.train = load(path, "train", options);
  if (options.load_test) sets.test = load(path, "t10k", options);
  return sets;
}

fs::path mnist_test_file(const fs::path& path) {
  return find_files(path, "t10k").images;
}

MnistSizes validate_mnist(const fs::path& path, const MnistOptions& options) {
  MnistSizes sizes;
  if (options.load_train) sizes.train = validate(path, "train");
  if (options.load_test) sizes.test = validate(path, "t10k");
  return sizes;
}

}  // namespace lockstep::inline v0::data
