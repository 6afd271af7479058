#include "lockstep/data/mnist.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <array>
#include <cstdlib>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/idx.h"

namespace lockstep::inline v0::data {
namespace mnist_test {

namespace fs = std::filesystem;

void write_pair(const fs::path& dir, const std::string& stem, int64_t count, char separator = '-') {
  std::vector<uint8_t> pixels(static_cast<size_t>(count) * 784), labels(static_cast<size_t>(count));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i / 784);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<uint8_t>(i % 10);
  fs::create_directories(dir);
  write_idx(dir / (stem + "-images" + separator + "idx3-ubyte"),
            std::array<int64_t, 3>{count, 28, 28}, pixels);
  write_idx(dir / (stem + "-labels" + separator + "idx1-ubyte"), std::array<int64_t, 1>{count},
            labels);
}

// The common error of mnist() and validate_mnist().
std::string refusal(const fs::path& dir) {
  const std::string loaded = message_of<DataError>([&] { mnist(dir); });
  EXPECT_EQ(message_of<DataError>([&] { validate_mnist(dir); }), loaded);
  return loaded;
}

void expect_refusal(const fs::path& dir, const std::string& part) {
  const std::string line = refusal(dir);
  EXPECT_NE(line.find(part), std::string::npos) << line;
}

TEST(Mnist, LoadsTheFourFilesInAnySpellingAndPlace) {
  for (const std::string place : {"", "MNIST/raw"}) {
    for (const char separator : {'-', '.'}) {
      const TestDirectory dir;
      write_pair(dir / place, "train", 12, separator);
      write_pair(dir / place, "t10k", 3, separator);
      const Mnist sets = mnist(dir.path());
      EXPECT_EQ(sets.train.size(), 12);
      EXPECT_EQ(sets.test.size(), 3);
      EXPECT_EQ(sets.train.images().sizes(), (torch::IntArrayRef{12, 1, 28, 28}));
      EXPECT_EQ(sets.train.labels()[11].item<int64_t>(), 1);
      EXPECT_EQ(sets.train.images()[7].sum().item<int64_t>(), 7 * 784);
      const MnistSizes sizes = validate_mnist(dir.path());
      EXPECT_EQ(sizes.train, 12);
      EXPECT_EQ(sizes.test, 3);
    }
  }
}

TEST(Mnist, LoadsOnlyWhatIsAskedFor) {
  const TestDirectory dir;
  write_pair(dir.path(), "t10k", 3);
  EXPECT_EQ(mnist(dir.path(), {.load_train = false}).train.size(), 0);
  EXPECT_EQ(mnist(dir.path(), {.load_train = false}).test.size(), 3);
  EXPECT_EQ(validate_mnist(dir.path(), {.load_train = false}).test, 3);
  expect_refusal(dir.path(), "train-images-idx3-ubyte: no such file");
}

TEST(Mnist, RefusesWhatIsNotMnist) {
  const TestDirectory dir;
  expect_refusal(dir / "none", "none: no such directory");
  dir.write("file", "");
  expect_refusal(dir / "file", "file: not a directory");

  write_pair(dir.path(), "train", 5);
  write_pair(dir.path(), "t10k", 5);
  const auto labels = [&](const std::vector<uint8_t>& values) {
    write_idx(dir / "t10k-labels-idx1-ubyte",
              std::array<int64_t, 1>{static_cast<int64_t>(values.size())}, values);
  };
  labels({1, 2, 3, 10, 4});
  expect_refusal(dir.path(), "t10k-labels-idx1-ubyte: label 10 of image 3 is outside 0..9");
  labels({1, 2, 3, 4});
  expect_refusal(dir.path(),
                 "t10k-labels-idx1-ubyte: 4 labels for the 5 images of t10k-images-idx3-ubyte");
  write_pair(dir.path(), "t10k", 0);
  expect_refusal(dir.path(), "t10k-images-idx3-ubyte: holds no images");
  write_idx(dir / "t10k-images-idx3-ubyte", std::array<int64_t, 3>{1, 32, 32},
            std::vector<uint8_t>(1024));
  expect_refusal(dir.path(), "holds 1x32x32 values, expected images of 28x28");
  write_idx(dir / "t10k-images-idx3-ubyte", std::array<int64_t, 3>{2, 28, 28},
            std::vector<uint8_t>(1568));
  const std::string images = dir.read("t10k-images-idx3-ubyte");
  dir.write("t10k-images-idx3-ubyte", images.substr(0, 1000));
  expect_refusal(dir.path(), "t10k-images-idx3-ubyte: truncated");
}

// Uses the real data, if they are available.
TEST(Mnist, LoadsFashionMnist) {
  const char* root = std::getenv("LOCKSTEP_DATA");
  const fs::path dir =
      fs::path(root ? root : LOCKSTEP_SOURCE_DIR "/../shared/data") / "fashion-mnist";
  if (!fs::is_directory(dir)) {
    GTEST_SKIP() << "no fashion-mnist directory; set LOCKSTEP_DATA to the directory that has it";
  }
  const Mnist sets = mnist(dir);
  ASSERT_EQ(sets.train.size(), 60000);
  ASSERT_EQ(sets.test.size(), 10000);
  EXPECT_TRUE(
      torch::equal(torch::bincount(sets.train.labels()), torch::full({10}, 6000, torch::kLong)));
  EXPECT_TRUE(
      torch::equal(torch::bincount(sets.test.labels()), torch::full({10}, 1000, torch::kLong)));
  EXPECT_EQ(sets.train.labels()[0].item<int64_t>(), 9);
  // The mean and deviation that the data set's authors publish.
  const auto pixels = sets.train.images().to(torch::kDouble) / 255;
  EXPECT_NEAR(pixels.mean().item<double>(), 0.2860, 5e-5);
  EXPECT_NEAR(pixels.std().item<double>(), 0.3530, 5e-5);
  EXPECT_EQ(validate_mnist(dir).train, 60000);
}

}  // namespace mnist_test
}  // namespace lockstep::inline v0::data
