#include "lockstep/flat/shard_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::flat::shard_plan_test {
namespace {

std::vector<size_t> tensors_of(const ShardedBucket& bucket) {
  std::vector<size_t> result;
  for (const auto& slot : bucket.bucket.slots) result.push_back(slot.tensor);
  return result;
}

TEST(ShardPlan, GroupsAndDtypesHaveTheirOwnBucketsInTheOrderOfBackward) {
  const std::vector<TensorSpec> tensors = {{100}, {5}, {100}, {7, at::kDouble}, {5}, {100}};
  const std::vector<size_t> groups = {0, 1, 0, 0, 1, 0};
  const auto plan = plan_shards(tensors, groups, 3, {.first = 800, .rest = 800});
  ASSERT_EQ(plan.size(), 4u);
  EXPECT_EQ(tensors_of(plan[0]), (std::vector<size_t>{3}));
  EXPECT_EQ(tensors_of(plan[1]), (std::vector<size_t>{5, 2}));
  EXPECT_EQ(tensors_of(plan[2]), (std::vector<size_t>{4, 1}));
  EXPECT_EQ(tensors_of(plan[3]), (std::vector<size_t>{0}));
  EXPECT_EQ(plan[2].group, 1u);
  EXPECT_EQ(plan[0].bucket.dtype, at::kDouble);
}

TEST(ShardPlan, PartsAreEqualAndAligned) {
  for (const int parts : {1, 2, 3, 7}) {
    const std::vector<TensorSpec> tensors = {{1}, {1001}, {0}, {3, at::kHalf}};
    const auto plan = plan_shards(tensors, std::vector<size_t>(4, 0), parts);
    ASSERT_EQ(plan.size(), 2u);
    for (const auto& [bucket, group, part] : plan) {
      EXPECT_EQ(part * parts, bucket.numel);
      EXPECT_EQ(part * static_cast<int64_t>(c10::elementSize(bucket.dtype)) % 64, 0);
      const auto& last = bucket.slots.back();
      EXPECT_GE(bucket.numel, last.offset + tensors[last.tensor].numel);
    }
  }
  EXPECT_THROW(plan_shards({}, {}, 0), InvalidArgument);
}

TEST(ShardPlan, WholeTensorsLieInOnePartEach) {
  const std::vector<TensorSpec> tensors = {{1000}, {900}, {16}, {500}, {500}, {0}, {40}};
  for (const int parts : {1, 2, 3, 5}) {
    const auto plan = plan_whole_shards(tensors, std::vector<size_t>(tensors.size(), 0), parts,
                                        {.first = 64, .rest = 64});
    std::vector<int> seen(tensors.size(), 0);
    for (const auto& [bucket, group, part] : plan) {
      EXPECT_EQ(part * parts, bucket.numel);
      int64_t end = 0;
      for (const auto& slot : bucket.slots) {
        ++seen[slot.tensor];
        EXPECT_GE(slot.offset, end);
        EXPECT_EQ(slot.offset % 16, 0);
        end = slot.offset + tensors[slot.tensor].numel;
        int holders = 0;
        for (int r = 0; r < parts; ++r) {
          const Range own = range_in_part(slot.offset, tensors[slot.tensor].numel, r, part);
          if (own.empty()) continue;
          ++holders;
          EXPECT_EQ(own.end - own.begin, tensors[slot.tensor].numel);
        }
        EXPECT_LE(holders, 1);
      }
    }
    EXPECT_EQ(seen, std::vector<int>(tensors.size(), 1));
  }
  // The largest first, each where least lies: 1000 and 500, 900 and 500 and the small ones.
  const auto two = plan_whole_shards(tensors, std::vector<size_t>(tensors.size(), 0), 2);
  ASSERT_EQ(two.size(), 1u);
  EXPECT_EQ(two[0].part, 1008 + 512);
}

TEST(ShardPlan, ATensorsRangesCoverItOnce) {
  for (const auto& [offset, numel] :
       {std::pair<int64_t, int64_t>{0, 30}, {7, 11}, {10, 10}, {29, 1}}) {
    int64_t covered = 0, at = offset;
    for (int rank = 0; rank < 3; ++rank) {
      const Range range = range_in_part(offset, numel, rank, 10);
      if (range.empty()) continue;
      EXPECT_EQ(rank * 10 + range.begin, at);
      at = rank * 10 + range.end;
      covered += range.end - range.begin;
    }
    EXPECT_EQ(covered, numel);
  }
  EXPECT_TRUE(range_in_part(5, 5, 1, 10).empty());
  EXPECT_TRUE(range_in_part(25, 5, 1, 10).empty());
  EXPECT_TRUE(range_in_part(15, 0, 1, 10).empty());
}

}  // namespace
}  // namespace lockstep::flat::shard_plan_test
