// Expected values: torch.utils.data.DistributedSampler of PyTorch 2.13.
#include "lockstep/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data {
namespace sampler_test {

using Indices = std::vector<int64_t>;

std::vector<Indices> all_ranks(int64_t size, int64_t replicas, int64_t epoch,
                               DistributedSamplerOptions options) {
  std::vector<Indices> ranks;
  for (int64_t rank = 0; rank < replicas; ++rank) {
    DistributedSampler sampler(size, replicas, rank, options);
    sampler.set_epoch(epoch);
    ranks.push_back(sampler.indices());
    EXPECT_EQ(sampler.size(), static_cast<int64_t>(ranks.back().size()));
  }
  return ranks;
}

TEST(LogicalSampler, DealsTheBatchesOfEachInTurn) {
  constexpr int64_t kSamples = 53, kReplicas = 4, kBatch = 3;
  const DistributedSamplerOptions options{.seed = 6};
  std::vector<std::vector<int64_t>> all;
  for (int64_t r = 0; r < kReplicas; ++r) {
    DistributedSampler one(kSamples, kReplicas, r, options);
    one.set_epoch(2);
    all.push_back(one.indices());
  }
  ASSERT_EQ(all[0].size(), 14u);  // four batches, and two samples that are left out
  for (const int64_t own : {1, 2, 4}) {
    for (int64_t first = 0; first < kReplicas; first += own) {
      LogicalSampler sampler(kSamples, kReplicas, first, own, kBatch, options);
      sampler.set_epoch(2);
      EXPECT_EQ(sampler.size(), 4 * own * kBatch);
      std::vector<int64_t> expected;
      for (int64_t step = 0; step < 4; ++step) {
        for (int64_t r = first; r < first + own; ++r) {
          const auto begin = all[static_cast<size_t>(r)].begin() + step * kBatch;
          expected.insert(expected.end(), begin, begin + kBatch);
        }
      }
      EXPECT_EQ(sampler.indices(), expected) << first << ", " << own;
    }
  }
  EXPECT_THROW(LogicalSampler(8, 4, 0, 1, 3), InvalidArgument);
  EXPECT_THROW(LogicalSampler(80, 4, 3, 2, 3), InvalidArgument);
  EXPECT_THROW(LogicalSampler(80, 4, 0, 1, 0), InvalidArgument);
}

TEST(DistributedSampler, EqualsPyTorch) {
  using Ranks = std::vector<Indices>;
  EXPECT_EQ(all_ranks(10, 3, 0, {}), (Ranks{{4, 5, 0, 2}, {1, 3, 8, 4}, {7, 9, 6, 1}}));
  EXPECT_EQ(all_ranks(10, 3, 3, {}), (Ranks{{6, 7, 1, 4}, {0, 8, 9, 6}, {3, 5, 2, 0}}));
  EXPECT_EQ(all_ranks(10, 3, 0, {.drop_last = true}), (Ranks{{4, 5, 0}, {1, 3, 8}, {7, 9, 6}}));
  EXPECT_EQ(all_ranks(7, 2, 3, {.shuffle = false}), (Ranks{{0, 2, 4, 6}, {1, 3, 5, 0}}));
  EXPECT_EQ(all_ranks(12, 4, 3, {.seed = 5, .drop_last = true}),
            (Ranks{{3, 9, 8}, {10, 4, 2}, {0, 1, 5}, {6, 7, 11}}));
  EXPECT_EQ(all_ranks(1, 1, 0, {}), (Ranks{{0}}));
  // Padding longer than the data set.
  EXPECT_EQ(all_ranks(2, 5, 0, {}), (Ranks{{0}, {1}, {0}, {1}, {0}}));
  EXPECT_EQ(all_ranks(3, 8, 0, {}), (Ranks{{2}, {0}, {1}, {2}, {0}, {1}, {2}, {0}}));
  EXPECT_EQ(all_ranks(10, 2, 0, {.seed = -3})[0], (Indices{1, 7, 5, 3, 6}));
}

TEST(DistributedSampler, EqualsPyTorchOnALargerSet) {
  const int64_t first[2][4] = {{775, 760, 390, 842}, {683, 447, 943, 251}};
  const int64_t weighted[2][4] = {{15306072, 15532974, 16159667, 16422318},
                                  {15402483, 15033988, 16402240, 15138704}};
  for (const int64_t epoch : {0, 3}) {
    const auto ranks = all_ranks(1000, 4, epoch, {.seed = 1234});
    for (size_t rank = 0; rank < 4; ++rank) {
      int64_t sum = 0;
      for (size_t i = 0; i < ranks[rank].size(); ++i)
        sum += static_cast<int64_t>(i + 1) * ranks[rank][i];
      EXPECT_EQ(ranks[rank][0], first[epoch / 3][rank]);
      EXPECT_EQ(sum, weighted[epoch / 3][rank]);
    }
  }
}

struct FakeComm {
  int rank() const { return 1; }
  int size() const { return 3; }
};

TEST(DistributedSampler, TakesRankAndSizeFromACommunicator) {
  const FakeComm comm;
  EXPECT_EQ(DistributedSampler(10, comm, {.shuffle = true, .seed = 0}).indices(),
            (Indices{1, 3, 8, 4}));
  EXPECT_EQ(ShardedSequentialSampler(10, comm).indices(), (Indices{4, 5, 6}));
}

TEST(DistributedSampler, RefusesWhatHasNoIndices) {
  EXPECT_THROW(DistributedSampler(0, 1, 0), InvalidArgument);
  EXPECT_THROW(DistributedSampler(10, 0, 0), InvalidArgument);
  EXPECT_THROW(DistributedSampler(10, 2, 2), InvalidArgument);
  EXPECT_THROW(DistributedSampler(10, 2, -1), InvalidArgument);
  EXPECT_THROW(DistributedSampler(3, 8, 0, {.drop_last = true}), InvalidArgument);
  DistributedSampler sampler(10, 2, 0);
  EXPECT_THROW(sampler.set_epoch(-1), InvalidArgument);
  EXPECT_EQ(sampler.epoch(), 0);
}

TEST(SequentialSampler, CountsUp) {
  EXPECT_EQ(SequentialSampler(4).indices(), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(SequentialSampler(4).size(), 4);
  EXPECT_THROW(SequentialSampler(0), InvalidArgument);
}

TEST(ShardedSequentialSampler, GivesEachSampleToOneRankInOrder) {
  for (const int64_t size : {1, 2, 7, 8, 9, 100}) {
    for (const int64_t replicas : {1, 2, 3, 8}) {
      Indices joined, sizes;
      for (int64_t rank = 0; rank < replicas; ++rank) {
        const ShardedSequentialSampler sampler(size, replicas, rank);
        const Indices mine = sampler.indices();
        EXPECT_EQ(sampler.size(), static_cast<int64_t>(mine.size()));
        joined.insert(joined.end(), mine.begin(), mine.end());
        sizes.push_back(sampler.size());
      }
      EXPECT_EQ(joined, SequentialSampler(size).indices());
      EXPECT_LE(*std::ranges::max_element(sizes) - *std::ranges::min_element(sizes), 1);
    }
  }
  EXPECT_THROW(ShardedSequentialSampler(0, 1, 0), InvalidArgument);
  EXPECT_THROW(ShardedSequentialSampler(1, 1, 1), InvalidArgument);
}

TEST(SubsetSampler, ReshufflesItsIndicesEveryEpoch) {
  const Indices subset = {50, 51, 52, 53, 54};
  SubsetSampler sampler(subset, {.seed = 2});
  // torch.randperm(5, generator=torch.Generator().manual_seed(2)) is 3, 4, 1, 0, 2.
  EXPECT_EQ(sampler.indices(), (Indices{53, 54, 51, 50, 52}));
  EXPECT_EQ(sampler.indices(), sampler.indices());
  sampler.set_epoch(1);
  EXPECT_NE(sampler.indices(), (Indices{53, 54, 51, 50, 52}));
  EXPECT_TRUE(std::ranges::is_permutation(sampler.indices(), subset));
  EXPECT_EQ(SubsetSampler(subset, {.shuffle = false}).indices(), subset);
  EXPECT_THROW(SubsetSampler({}), InvalidArgument);
  EXPECT_THROW(SubsetSampler({0, -1}), InvalidArgument);
}

}  // namespace sampler_test
}  // namespace lockstep::inline v0::data
