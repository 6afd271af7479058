#include "lockstep/data/digits.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <future>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/mnist.h"

namespace lockstep::inline v0::data {
namespace digits_test {

unsigned long crc(const std::vector<uint8_t>& bytes) {
  return ::crc32(0, bytes.data(), static_cast<uInt>(bytes.size()));
}

// The bytes must be these on every machine and with every compiler. A deliberate change of them
// must raise the version in digits_files.cpp.
TEST(Digits, AreTheSameBytesEverywhere) {
  const Digits digits = render_digits(200, 1234, DigitsSplit::kTrain);
  EXPECT_EQ(crc(digits.images), 3460456551U);
  EXPECT_EQ(crc(digits.labels), 1945441387U);
}

TEST(Digits, DependOnSeedSplitAndIndexOnly) {
  const Digits few = render_digits(5, 1, DigitsSplit::kTrain),
               more = render_digits(9, 1, DigitsSplit::kTrain);
  EXPECT_TRUE(std::equal(few.images.begin(), few.images.end(), more.images.begin()));
  EXPECT_NE(few.images, render_digits(5, 2, DigitsSplit::kTrain).images);
  EXPECT_NE(few.images, render_digits(5, 1, DigitsSplit::kTest).images);
  EXPECT_TRUE(render_digits(0, 1, DigitsSplit::kTest).labels.empty());
  EXPECT_THROW(render_digits(-1, 1, DigitsSplit::kTest), InvalidArgument);
}

// Like MNIST: balanced classes, a dark background, ink in the middle. Hard enough that the nearest
// class mean is often wrong, and easy enough that it is mostly right.
TEST(Digits, AreLearnableAndNotTrivial) {
  const Digits train = render_digits(3000, 3, DigitsSplit::kTrain),
               test = render_digits(1000, 3, DigitsSplit::kTest);
  std::array<std::array<double, 784>, 10> mean{};
  std::array<double, 10> count{};
  double ink = 0, border = 0;
  for (size_t i = 0; i < train.labels.size(); ++i) {
    count[train.labels[i]] += 1;
    for (size_t p = 0; p < 784; ++p) {
      mean[train.labels[i]][p] += train.images[i * 784 + p];
      ink += train.images[i * 784 + p];
      if (p < 28 || p >= 756) border += train.images[i * 784 + p];
    }
  }
  for (size_t digit = 0; digit < 10; ++digit) {
    EXPECT_GT(count[digit], 230);
    EXPECT_LT(count[digit], 370);
    for (auto& value : mean[digit]) value /= count[digit];
  }
  EXPECT_NEAR(ink / 255 / 784 / 3000, 0.1307, 0.02);
  EXPECT_LT(border / ink, 0.03);
  int right = 0;
  for (size_t i = 0; i < test.labels.size(); ++i) {
    std::array<double, 10> distance{};
    for (size_t digit = 0; digit < 10; ++digit) {
      for (size_t p = 0; p < 784; ++p) {
        const double d = test.images[i * 784 + p] - mean[digit][p];
        distance[digit] += d * d;
      }
    }
    right += std::ranges::min_element(distance) - distance.begin() == test.labels[i];
  }
  EXPECT_GT(right, 600);
  EXPECT_LT(right, 850);
}

TEST(Digits, WritesADataSetOnce) {
  const TestDirectory dir;
  const auto set = dir / "a/b";
  EXPECT_TRUE(generate_digits(set, {.train = 30, .test = 20, .seed = 5}));
  const auto files = [&] { return std::distance(std::filesystem::directory_iterator(set), {}); };
  EXPECT_EQ(files(), 5);
  const auto written = std::filesystem::last_write_time(set / "train-images-idx3-ubyte");
  EXPECT_FALSE(generate_digits(set, {.train = 30, .test = 20, .seed = 5}));
  EXPECT_EQ(std::filesystem::last_write_time(set / "train-images-idx3-ubyte"), written);

  const Mnist sets = mnist(set);
  EXPECT_EQ(sets.train.size(), 30);
  EXPECT_EQ(sets.test.size(), 20);
  const Digits digits = render_digits(30, 5, DigitsSplit::kTrain);
  EXPECT_TRUE(std::equal(digits.images.begin(), digits.images.end(),
                         sets.train.images().const_data_ptr<uint8_t>()));

  EXPECT_TRUE(generate_digits(set, {.train = 31, .test = 20, .seed = 5}));
  EXPECT_EQ(mnist(set).train.size(), 31);
  // A lost file, or an interrupted run, is repaired.
  std::filesystem::remove(set / "t10k-labels-idx1-ubyte");
  EXPECT_TRUE(generate_digits(set, {.train = 31, .test = 20, .seed = 5}));
  EXPECT_EQ(files(), 5);
}

TEST(Digits, LeavesOtherPeoplesFilesAlone) {
  const TestDirectory dir;
  dir.write("train-images-idx3-ubyte.gz", "precious");
  const auto line =
      message_of<InvalidArgument>([&] { generate_digits(dir.path(), {.train = 3, .test = 2}); });
  EXPECT_NE(line.find("train-images-idx3-ubyte.gz"), std::string::npos) << line;
  EXPECT_EQ(dir.read("train-images-idx3-ubyte.gz"), "precious");
  EXPECT_EQ(dir.names().size(), 1U);
  EXPECT_THROW(generate_digits(dir / "new", {.train = 0}), InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(dir / "new"));
}

TEST(Digits, SeveralMayAskAtOnce) {
  const TestDirectory dir;
  std::vector<std::future<bool>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(std::async(std::launch::async, [&] {
      return generate_digits(dir / "set", {.train = 50, .test = 10});
    }));
  }
  int wrote = 0;
  for (auto& call : calls) wrote += call.get();
  EXPECT_EQ(wrote, 1);
  EXPECT_EQ(mnist(dir / "set").train.size(), 50);
}

}  // namespace digits_test
}  // namespace lockstep::inline v0::data
