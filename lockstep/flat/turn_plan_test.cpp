#include "lockstep/flat/turn_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::flat_test {
namespace {

using flat::plan_turns;
using flat::TensorSpec;
using flat::TurnPlan;
using ::testing::ElementsAre;

TEST(TurnPlan, BucketsTakeTheBuffersInTurn) {
  const std::vector<TensorSpec> buckets = {{10}, {20}, {5}, {30}, {7}};
  const TurnPlan plan = plan_turns(buckets, 2);
  ASSERT_EQ(plan.buffers.size(), 2u);
  EXPECT_EQ(plan.buffers[0].numel, 10);
  EXPECT_EQ(plan.buffers[1].numel, 30);
  std::vector<size_t> buffers;
  std::vector<std::optional<size_t>> after;
  for (const TurnPlan::Turn& turn : plan.turns) {
    buffers.push_back(turn.buffer);
    after.push_back(turn.after);
  }
  EXPECT_THAT(buffers, ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(after, ElementsAre(std::nullopt, std::nullopt, 0, 1, 2));
}

TEST(TurnPlan, EachKindHasBuffersOfItsOwn) {
  const std::vector<TensorSpec> buckets = {{10}, {20, at::kDouble},
                                           {30}, {40, at::kDouble},
                                           {50}, {60, at::kFloat, at::Device("cuda:0")}};
  const TurnPlan plan = plan_turns(buckets, 1);
  ASSERT_EQ(plan.buffers.size(), 3u);
  EXPECT_EQ(plan.buffers[0].numel, 50);
  EXPECT_EQ(plan.buffers[1].numel, 40);
  EXPECT_EQ(plan.buffers[1].dtype, at::kDouble);
  EXPECT_EQ(plan.buffers[2].device, at::Device("cuda:0"));
  EXPECT_EQ(plan.turns[4].after, 2u);
  EXPECT_EQ(plan.turns[3].after, 1u);
  EXPECT_EQ(plan.turns[5].after, std::nullopt);
}

TEST(TurnPlan, FewBucketsHaveABufferEach) {
  const std::vector<TensorSpec> buckets = {{10}, {20}};
  EXPECT_EQ(plan_turns(buckets, 3).buffers.size(), 2u);
  EXPECT_TRUE(plan_turns({}, 3).turns.empty());
  EXPECT_THROW(plan_turns(buckets, 0), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::flat_test
