// Expected values: torchvision's ToTensor and Normalize((0.1307,), (0.3081,)), PyTorch 2.13.
#include "lockstep/data/image_dataset.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <bit>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {
namespace image_dataset_test {

TEST(ImageDataset, NormalisesBitForBitAsTorchvision) {
  const auto images = torch::arange(256, torch::kByte).view({1, 1, 16, 16});
  const ImageDataset dataset(images, torch::zeros({1}, torch::kLong), {0.1307}, {0.3081});
  const auto input = dataset.batch(std::vector<int64_t>{0}).input.flatten();
  const auto bits = [&](int64_t i) { return std::bit_cast<uint32_t>(input[i].item<float>()); };
  EXPECT_EQ(bits(0), 0xbed93271U);
  EXPECT_EQ(bits(1), 0xbed2ae20U);
  EXPECT_EQ(bits(77), 0x3f0e4ce9U);
  EXPECT_EQ(bits(254), 0x4033c2b3U);
  EXPECT_EQ(bits(255), 0x4034933dU);
  uint64_t all = 0;
  for (int64_t i = 0; i < 256; ++i)
    all += static_cast<uint64_t>(bits(i)) * static_cast<uint64_t>(i + 1);
  EXPECT_EQ(all, 36456080262868U);
  // Also the result of libtorch's own operations.
  const auto expected = images.flatten()
                            .to(torch::kFloat)
                            .div(255)
                            .sub_(torch::tensor(0.1307F))
                            .div_(torch::tensor(0.3081F));
  EXPECT_TRUE(torch::equal(input, expected));
}

TEST(ImageDataset, GathersInTheOrderAskedFor) {
  const auto images = torch::arange(4 * 3 * 2 * 2, torch::kByte).view({4, 3, 2, 2});
  const auto labels = torch::tensor({5, 6, 7, 8}, torch::kLong);
  const ImageDataset dataset(images, labels, {0.0, 0.5, 0.0}, {1.0, 1.0, 2.0});
  EXPECT_EQ(dataset.size(), 4);
  auto [input, target] = dataset.batch(std::vector<int64_t>{2, 0, 2});
  EXPECT_EQ(input.sizes(), (torch::IntArrayRef{3, 3, 2, 2}));
  EXPECT_EQ(input.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(target, torch::tensor({7, 5, 7}, torch::kLong)));
  EXPECT_FLOAT_EQ(input[0][0][1][1].item<float>(), 27.0F / 255);
  EXPECT_FLOAT_EQ(input[1][1][0][0].item<float>(), 4.0F / 255 - 0.5F);
  EXPECT_FLOAT_EQ(input[1][2][0][1].item<float>(), 9.0F / 255 / 2);
  EXPECT_EQ(dataset.batch({}).input.sizes(), (torch::IntArrayRef{0, 3, 2, 2}));
}

TEST(ImageDataset, RefusesWhatDoesNotFit) {
  const auto images = torch::zeros({2, 1, 4, 4}, torch::kByte);
  const auto labels = torch::zeros({2}, torch::kLong);
  EXPECT_THROW(ImageDataset(images.to(torch::kFloat), labels, {0}, {1}), InvalidArgument);
  EXPECT_THROW(ImageDataset(images, labels.to(torch::kInt), {0}, {1}), InvalidArgument);
  EXPECT_THROW(ImageDataset(images, torch::zeros({3}, torch::kLong), {0}, {1}), InvalidArgument);
  EXPECT_THROW(ImageDataset(images.squeeze(1), labels, {0}, {1}), InvalidArgument);
  EXPECT_THROW(ImageDataset(images, labels, {0, 0}, {1}), InvalidArgument);
  EXPECT_THROW(ImageDataset(images, labels, {0}, {0}), InvalidArgument);
  EXPECT_THROW(ImageDataset(images, labels, {0}, {}), InvalidArgument);
  const ImageDataset dataset(images, labels, {0}, {1});
  EXPECT_THROW(dataset.batch(std::vector<int64_t>{0, 2}), InvalidArgument);
  EXPECT_THROW(dataset.batch(std::vector<int64_t>{-1}), InvalidArgument);
  EXPECT_THROW(ImageDataset().batch({}), InvalidArgument);
  EXPECT_EQ(ImageDataset().size(), 0);
}

}  // namespace image_dataset_test
}  // namespace lockstep::inline v0::data
