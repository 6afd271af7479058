#include "lockstep/data/length_grouped_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {
namespace length_grouped_sampler_test {

using Indices = std::vector<int64_t>;

std::vector<int64_t> lengths(int64_t count) {
  std::vector<int64_t> made;
  for (int64_t i = 0; i < count; ++i) made.push_back(i * 37 % 23 + 1);
  return made;
}

// The result of transformers 5's DistributedLengthGroupedSampler for the same arguments.
TEST(LengthGroupedSampler, GivesTheIndicesOfTransformers) {
  const auto indices = [](int64_t ranks, int64_t rank, int64_t epoch,
                          const LengthGroupedSamplerOptions& options) {
    LengthGroupedSampler sampler(lengths(30), ranks, rank, options);
    sampler.set_epoch(epoch);
    EXPECT_EQ(sampler.size(), static_cast<int64_t>(sampler.indices().size()));
    return sampler.indices();
  };
  const LengthGroupedSamplerOptions four{.batch_size = 4, .seed = 7};
  EXPECT_EQ(indices(3, 0, 0, four), (Indices{18, 0, 7, 12, 13, 10, 16, 6, 14, 22}));
  EXPECT_EQ(indices(3, 1, 0, four), (Indices{17, 29, 23, 25, 11, 3, 2, 19, 1, 4}));
  EXPECT_EQ(indices(3, 2, 0, four), (Indices{15, 27, 26, 28, 20, 21, 8, 9, 24, 5}));
  EXPECT_EQ(indices(3, 1, 1, four), (Indices{6, 13, 15, 12, 7, 26, 10, 14, 24, 16}));
  LengthGroupedSamplerOptions two{.batch_size = 2, .seed = 7};
  EXPECT_EQ(indices(4, 3, 0, two), (Indices{7, 29, 23, 11, 21, 2, 4, 27}));
  two.drop_last = true;
  EXPECT_EQ(indices(4, 0, 0, two), (Indices{18, 15, 12, 13, 20, 6, 14}));
  EXPECT_EQ(indices(1, 0, 0, {.batch_size = 100}),
            (Indices{18, 13, 8,  26, 3,  21, 16, 11, 29, 6,  24, 1, 19, 14, 9,
                     27, 4,  22, 17, 12, 7,  25, 2,  20, 15, 10, 5, 28, 23, 0}));
}

TEST(LengthGroupedSampler, StepsHaveSimilarLengthsOnAllRanks) {
  constexpr int64_t kRanks = 3, kBatch = 4, kSamples = 600;
  const auto all = lengths(kSamples);
  std::vector<Indices> ranks;
  std::multiset<int64_t> seen;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    LengthGroupedSampler sampler(all, kRanks, rank, {.batch_size = kRanks * kBatch, .seed = 3});
    sampler.set_epoch(2);
    ranks.push_back(sampler.indices());
    seen.insert(ranks.back().begin(), ranks.back().end());
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kSamples));
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), static_cast<size_t>(kSamples));
  int64_t padded = 0, tokens = 0;
  for (size_t step = 0; step < ranks[0].size(); step += kBatch) {
    int64_t longest = 0;
    for (const Indices& rank : ranks) {
      for (size_t i = step; i < step + kBatch; ++i) {
        const int64_t length = all[static_cast<size_t>(rank[i])];
        longest = std::max(longest, length);
        tokens += length;
      }
    }
    padded += longest * kRanks * kBatch;
  }
  EXPECT_LT(padded, tokens * 11 / 10);  // a random order would give about 1.8 times as many
}

TEST(LengthGroupedSampler, RefusesWhatCannotBe) {
  EXPECT_THROW(LengthGroupedSampler({}, 1, 0, {}), InvalidArgument);
  EXPECT_THROW(LengthGroupedSampler({1}, 1, 1, {}), InvalidArgument);
  EXPECT_THROW(LengthGroupedSampler({1}, 0, 0, {}), InvalidArgument);
  EXPECT_THROW(LengthGroupedSampler({1}, 1, 0, {.batch_size = 0}), InvalidArgument);
  EXPECT_THROW(LengthGroupedSampler({1}, 1, 0, {.group = -1}), InvalidArgument);
  EXPECT_THROW(LengthGroupedSampler({1}, 2, 0, {.drop_last = true}), InvalidArgument);
  EXPECT_EQ(LengthGroupedSampler({1}, 3, 2, {}).indices(), Indices{0});
  EXPECT_EQ(LengthGroupedSampler({5, 6}, 1, 0, {.group = INT64_MAX}).indices(), (Indices{1, 0}));
}

}  // namespace length_grouped_sampler_test
}  // namespace lockstep::inline v0::data
