#include "lockstep/data/augment.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>

#include "lockstep/core/errors.h"
#include "lockstep/data/cifar10.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/shapes.h"

namespace lockstep::inline v0::data {
namespace augment_test {

ImageDataset numbered(int64_t count, int64_t height = 6, int64_t width = 8) {
  const auto values = torch::arange(count * 2 * height * width).remainder(251).to(torch::kByte);
  return ImageDataset(values.view({count, 2, height, width}), torch::arange(count), {0.5, 0.25},
                      {1.0, 2.0});
}

// The same result by padding, cropping and flipping the pixels.
torch::Tensor laid_down(const ImageDataset& images, int64_t index, const Placement& placement) {
  const int64_t pad = 10;
  const auto image = images.images()[index].to(torch::kFloat);
  const auto padded = torch::constant_pad_nd(image, {pad, pad, pad, pad}, 0);
  auto crop = padded.narrow(1, pad - placement.down, image.size(1))
                  .narrow(2, pad - placement.right, image.size(2));
  if (placement.flip) crop = crop.flip({2});
  return (crop / 255 - torch::tensor({0.5F, 0.25F}).view({2, 1, 1})) /
         torch::tensor({1.0F, 2.0F}).view({2, 1, 1});
}

TEST(Placement, MovesAndMirrors) {
  const ImageDataset images = numbered(3);
  for (const bool flip : {false, true}) {
    for (int64_t down = -7; down <= 7; ++down) {
      for (int64_t right = -9; right <= 9; ++right) {
        const std::vector<Placement> placements{{}, {.down = down, .right = right, .flip = flip}};
        const auto batch = images.batch(std::vector<int64_t>{0, 2}, placements);
        ASSERT_TRUE(torch::equal(batch.input[1], laid_down(images, 2, placements[1])))
            << down << " " << right << " " << flip;
        ASSERT_TRUE(torch::equal(batch.input[0], images.batch(std::vector<int64_t>{0}).input[0]));
        ASSERT_EQ(batch.target[1].item<int64_t>(), 2);
      }
    }
  }
  EXPECT_THROW(images.batch(std::vector<int64_t>{0}, std::vector<Placement>{}), InvalidArgument);
  EXPECT_THROW(images.batch(std::vector<int64_t>{3}, std::vector<Placement>(1)), InvalidArgument);
}

TEST(Augment, DrawsEveryPlacementAboutEquallyOften) {
  const AugmentOptions options{.crop_padding = 2, .seed = 7};
  std::map<std::tuple<int64_t, int64_t, bool>, int> counts;
  constexpr int kDraws = 50'000;
  for (int64_t i = 0; i < kDraws; ++i) {
    const Placement placement = draw_placement(options, i / 1000, i % 1000);
    ++counts[{placement.down, placement.right, placement.flip}];
  }
  ASSERT_EQ(counts.size(), 50U);
  for (const auto& [placement, count] : counts) {
    EXPECT_LE(std::abs(std::get<0>(placement)), 2);
    EXPECT_NEAR(count, kDraws / 50, 160);  // five standard deviations
  }
}

TEST(Augment, DependsOnSeedEpochAndSampleAlone) {
  const AugmentOptions options{.seed = 7};
  EXPECT_EQ(draw_placement(options, 3, 5), draw_placement(options, 3, 5));
  int same_epoch = 0, same_sample = 0, same_seed = 0, swapped = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const Placement one = draw_placement(options, 3, i);
    same_epoch += one == draw_placement(options, 3, i + 1);
    same_sample += one == draw_placement(options, 4, i);
    same_seed += one == draw_placement({.seed = 8}, 3, i);
    swapped += one == draw_placement(options, i, 3);
  }
  for (const int matches : {same_epoch, same_sample, same_seed, swapped}) EXPECT_LT(matches, 8);
}

TEST(Augment, TellsNothingOfAGeneratedLabel) {
  constexpr int64_t kSamples = 1000;
  const auto records = render_shapes(kSamples, 7, ShapesSplit::kTrain);
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    int64_t as_if_drawn_from_label = 0;
    for (int64_t i = 0; i < kSamples; ++i) {
      const int64_t label = records[static_cast<size_t>(i * kCifar10Record)];
      const Placement placement = draw_placement({.crop_padding = 4, .seed = 7}, epoch, i);
      as_if_drawn_from_label += (placement.down + 4) * 10 / 9 == label;
    }
    EXPECT_NEAR(as_if_drawn_from_label, kSamples / 10, 60) << epoch;
  }
}

TEST(Augment, TheSameWhateverTheWorkersAndRanks) {
  const AugmentedImages images(numbered(48), {.crop_padding = 2, .seed = 3});
  // The pixels of each sample in epoch 2, by sample.
  const auto samples = [&](int64_t ranks, int workers, int64_t first_batch) {
    std::map<int64_t, torch::Tensor> found;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      DistributedSampler sampler(48, ranks, rank, {.seed = 1});
      sampler.set_epoch(2);
      Loader loader(images, sampler, {.batch_size = 5, .num_workers = workers});
      loader.skip(first_batch);
      for (auto& [input, target] : loader) {
        for (int64_t i = 0; i < target.size(0); ++i)
          found[target[i].item<int64_t>()] = input[i].clone();
      }
    }
    return found;
  };
  const auto expected = samples(1, 0, 0);
  ASSERT_EQ(expected.size(), 48U);
  int moved = 0;
  for (const auto& [index, image] : expected)
    moved += !torch::equal(image, images.batch(std::vector<int64_t>{index}).input[0]);
  EXPECT_GT(moved, 35);
  const auto compare = [&](const std::map<int64_t, torch::Tensor>& found) {
    for (const auto& [index, image] : found)
      EXPECT_TRUE(torch::equal(image, expected.at(index))) << index;
  };
  compare(samples(1, 3, 0));
  compare(samples(3, 2, 0));
  compare(samples(2, 1, 3));  // resumed within the epoch
}

TEST(Augment, NothingToDoIsTheImagesThemselves) {
  const AugmentedImages images(numbered(4), {.crop_padding = 0, .flip = false});
  const std::vector<int64_t> all{0, 1, 2, 3};
  EXPECT_TRUE(torch::equal(images.batch(all, 9).input, images.images().batch(all).input));
  const AugmentedImages mirrored(numbered(64), {.crop_padding = 0});
  for (int64_t i = 0; i < 64; ++i) {
    const Placement placement = draw_placement({.crop_padding = 0}, 1, i);
    EXPECT_EQ(placement.down, 0);
    EXPECT_EQ(placement.right, 0);
  }
}

TEST(Augment, RefusesBadPadding) {
  EXPECT_THROW(AugmentedImages(numbered(1), {.crop_padding = -1}), InvalidArgument);
  EXPECT_THROW(AugmentedImages(numbered(1), {.crop_padding = 6}), InvalidArgument);
  EXPECT_EQ(AugmentedImages(ImageDataset(), {.crop_padding = 0}).size(), 0);
}

}  // namespace augment_test
}  // namespace lockstep::inline v0::data
