#include "lockstep/flat/bucket_plan.h"

#include <gtest/gtest.h>

#include <set>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::flat::bucket_plan_test {
namespace {

std::vector<TensorSpec> floats(std::initializer_list<int64_t> numels) {
  std::vector<TensorSpec> specs;
  for (const int64_t n : numels) specs.push_back({n, at::kFloat});
  return specs;
}

TEST(BucketPlan, GoesBackwardsAndClosesFullBuckets) {
  // 16 floats are one line of 64 bytes.
  const auto buckets = plan_buckets(floats({16, 16, 16, 16, 16}), {.first = 64, .rest = 128});
  ASSERT_EQ(buckets.size(), 3u);
  ASSERT_EQ(buckets[0].slots.size(), 1u);
  EXPECT_EQ(buckets[0].slots[0].tensor, 4u);
  ASSERT_EQ(buckets[1].slots.size(), 2u);
  EXPECT_EQ(buckets[1].slots[0].tensor, 3u);
  EXPECT_EQ(buckets[1].slots[1].tensor, 2u);
  EXPECT_EQ(buckets[1].slots[1].offset, 16);
  EXPECT_EQ(buckets[2].slots.size(), 2u);
}

TEST(BucketPlan, AlignsTensorsToLinesOfTheirDtype) {
  const std::vector<TensorSpec> specs{{3, at::kHalf}, {1, at::kHalf}, {33, at::kHalf}};
  const auto buckets = plan_buckets(specs);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].slots[0].offset, 0);
  EXPECT_EQ(buckets[0].slots[1].offset, 64);  // 33 halves need two lines of 32
  EXPECT_EQ(buckets[0].slots[2].offset, 96);
  EXPECT_EQ(buckets[0].numel, 128);
}

TEST(BucketPlan, KeepsDtypesApartAndLosesNothing) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 100; ++i)
    specs.push_back({i % 7 == 0 ? 0 : i * 31, i % 3 == 0 ? at::kDouble : at::kFloat});
  const auto buckets = plan_buckets(specs, {.first = 1000, .rest = 5000});
  std::set<size_t> seen;
  for (const Bucket& bucket : buckets) {
    int64_t end = 0;
    for (const auto& slot : bucket.slots) {
      EXPECT_EQ(specs[slot.tensor].dtype, bucket.dtype);
      EXPECT_GE(slot.offset, end);
      end = slot.offset + specs[slot.tensor].numel;
      EXPECT_TRUE(seen.insert(slot.tensor).second);
    }
    EXPECT_LE(end, bucket.numel);
  }
  EXPECT_EQ(seen.size(), specs.size());
}

TEST(BucketPlan, FollowsAnOrderAndKeepsDevicesApart) {
  std::vector<TensorSpec> specs = floats({16, 16, 16, 16});
  specs[2].device = at::Device(at::kCUDA, 1);
  const std::vector<size_t> order{2, 0, 3};  // without 1
  const auto buckets = plan_buckets(specs, order, {.first = 64, .rest = 128});
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].device, specs[2].device);
  ASSERT_EQ(buckets[0].slots.size(), 1u);
  EXPECT_EQ(buckets[0].slots[0].tensor, 2u);
  ASSERT_EQ(buckets[1].slots.size(), 2u);
  EXPECT_EQ(buckets[1].slots[0].tensor, 0u);
  EXPECT_EQ(buckets[1].slots[1].tensor, 3u);
}

TEST(BucketPlan, TakesNothingAndRefusesNonsense) {
  EXPECT_TRUE(plan_buckets({}).empty());
  EXPECT_THROW(plan_buckets(floats({1}), {.first = 0}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::flat::bucket_plan_test
