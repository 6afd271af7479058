#include "lockstep/data/batch_shards.h"

#include <gtest/gtest.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data::batch_shards_test {

TEST(BatchShards, DealsWholeBatchesAndFillsTheLastOnesFromTheBeginning) {
  SequentialSampler whole(11);
  const BatchShards first(whole, 2, 2, 0), second(whole, 2, 2, 1);
  EXPECT_EQ(first.indices(), (std::vector<int64_t>{0, 1, 4, 5, 8, 9}));
  EXPECT_EQ(second.indices(), (std::vector<int64_t>{2, 3, 6, 7, 10, 0}));
  EXPECT_EQ(first.size(), 6);
  EXPECT_EQ(first.last_step_samples(), 3);
}

TEST(BatchShards, LeavesOutWhatDoesNotFillABatchEverywhere) {
  SequentialSampler whole(11);
  const BatchShards second(whole, 2, 2, 1, /*drop_last=*/true);
  EXPECT_EQ(second.indices(), (std::vector<int64_t>{2, 3, 6, 7}));
  EXPECT_EQ(second.last_step_samples(), 4);
}

TEST(BatchShards, FollowsTheEpochOfAShuffledSampler) {
  SubsetSampler whole({0, 1, 2, 3, 4, 5, 6, 7}, {.seed = 3});
  BatchShards first(whole, 4, 2, 0), second(whole, 4, 2, 1);
  for (const int64_t epoch : {0, 1, 2}) {
    first.set_epoch(epoch);
    second.set_epoch(epoch);
    std::vector<int64_t> together = first.indices();
    for (const int64_t i : second.indices()) together.push_back(i);
    whole.set_epoch(epoch);
    EXPECT_EQ(together, whole.indices());
  }
}

TEST(BatchShards, RefusesWhatMakesNoSense) {
  SequentialSampler whole(3);
  EXPECT_THROW(BatchShards(whole, 0, 1, 0), InvalidArgument);
  EXPECT_THROW(BatchShards(whole, 1, 2, 2), InvalidArgument);
  EXPECT_THROW(BatchShards(whole, 2, 2, 0, true), InvalidArgument);
}

}  // namespace lockstep::inline v0::data::batch_shards_test
