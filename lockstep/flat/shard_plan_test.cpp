#include "lockstep/flat/shard_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::flat::shard_plan_test {
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
  const std::vector<size_t> groups(tensors.size(), 0);
  const std::vector<int64_t> uncut(tensors.size(), kUncut);
  for (const int parts : {1, 2, 3, 5}) {
    const auto plan = plan_shards(tensors, groups, uncut, parts, {.first = 64, .rest = 64});
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
  // The largest tensor first, each to the part with the least so far: 1000 and 500; 900, 500 and
  // the small ones.
  const auto two = plan_shards(tensors, groups, uncut, 2);
  ASSERT_EQ(two.size(), 1u);
  EXPECT_EQ(two[0].part, 1008 + 512);
}

// Pseudorandom numbers, the same on every machine.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  int64_t below(int64_t bound) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

int64_t rounded_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

struct Drawn {
  std::vector<TensorSpec> tensors;
  std::vector<size_t> groups;
  std::vector<int64_t> grains;
};

// Matrices by rows of some widths, whole ones, and others; of two dtypes and groups.
Drawn drawn(uint64_t seed) {
  const std::vector<int64_t> widths = {1, 13, 32, 48, 257};
  Numbers numbers(seed);
  Drawn result;
  const auto count = 1 + numbers.below(40);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t width = widths[static_cast<size_t>(numbers.below(5))];
    const int64_t numel = width * numbers.below(seed % 2 == 0 ? 40 : 400);
    result.tensors.push_back({numel, numbers.below(4) == 0 ? at::kBFloat16 : at::kFloat});
    result.groups.push_back(static_cast<size_t>(numbers.below(2)));
    const int64_t kind = numbers.below(3);
    result.grains.push_back(kind == 0 ? 1 : kind == 1 ? width : kUncut);
  }
  return result;
}

// Checks the bounds that the header promises.
void expect_even(const ShardedBucket& one, int parts, const Drawn& given) {
  const auto element = static_cast<int64_t>(c10::elementSize(one.bucket.dtype));
  const int64_t aligned = 64 / element;
  int64_t total = 0, largest_whole = 0, largest_grain = 0;
  for (const auto& slot : one.bucket.slots) {
    const int64_t numel = given.tensors[slot.tensor].numel;
    total += rounded_up(numel, aligned);
    const int64_t grain = given.grains[slot.tensor];
    const int64_t both = grain == kUncut ? 0 : std::lcm(grain, aligned);
    if (grain == kUncut || (both > aligned && numel <= both))
      largest_whole = std::max(largest_whole, rounded_up(numel, aligned));
    else
      largest_grain = std::max(largest_grain, both);
  }
  const double mean = static_cast<double>(total) / parts;
  const auto part = static_cast<double>(one.part);
  if (parts == 1 || (largest_whole == 0 && largest_grain <= aligned))
    EXPECT_LE(part, mean + static_cast<double>(aligned));
  else if (largest_whole == 0)
    EXPECT_LE(part, mean + 2.0 * static_cast<double>(largest_grain));
  else
    EXPECT_LE(part, mean * 65 / 64 + static_cast<double>(largest_whole + aligned));
}

TEST(ShardPlan, TensorsAreDividedWhereTheirGrainsSay) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Drawn given = drawn(seed);
    for (int parts = 1; parts <= 8; ++parts) {
      const auto plan = plan_shards(given.tensors, given.groups, given.grains, parts,
                                    {.first = 4000, .rest = 20'000});
      std::vector<int> seen(given.tensors.size(), 0);
      for (const ShardedBucket& one : plan) {
        const auto element = static_cast<int64_t>(c10::elementSize(one.bucket.dtype));
        EXPECT_EQ(one.bucket.numel, parts * one.part);
        EXPECT_EQ(one.part * element % 64, 0);
        int64_t end = 0;
        for (const auto& slot : one.bucket.slots) {
          const TensorSpec& tensor = given.tensors[slot.tensor];
          ++seen[slot.tensor];
          EXPECT_EQ(tensor.dtype, one.bucket.dtype);
          EXPECT_EQ(given.groups[slot.tensor], one.group);
          EXPECT_EQ(slot.offset * element % 64, 0);
          EXPECT_GE(slot.offset, end);
          end = slot.offset + tensor.numel;
          int64_t covered = 0;
          for (int r = 0; r < parts; ++r) {
            const Range own = range_in_part(slot.offset, tensor.numel, r, one.part);
            if (own.empty()) continue;
            EXPECT_EQ(r * one.part + own.begin, slot.offset + covered);
            const int64_t grain = given.grains[slot.tensor];
            if (covered > 0) {
              ASSERT_NE(grain, kUncut) << "seed " << seed << ", parts " << parts;
              EXPECT_EQ(covered % grain, 0) << "seed " << seed << ", parts " << parts;
            }
            covered += own.end - own.begin;
          }
          EXPECT_EQ(covered, tensor.numel);
        }
        EXPECT_LE(end, one.bucket.numel);
        expect_even(one, parts, given);
      }
      EXPECT_EQ(seen, std::vector<int>(given.tensors.size(), 1));
    }
  }
}

// A whole embedding and the rest of a model: the other tensors fill up the parts without it.
TEST(ShardPlan, PartsAreFilledUpBesideWholeTensors) {
  std::vector<TensorSpec> tensors = {{1000 * 64}};
  std::vector<int64_t> grains = {kUncut};
  for (int i = 0; i < 40; ++i) {
    tensors.push_back({64 * 64 + 16 * i});
    grains.push_back(1);
  }
  int64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += tensor.numel;
  const std::vector<size_t> groups(tensors.size(), 0);
  for (const int parts : {2, 3}) {
    const auto plan =
        plan_shards(tensors, groups, grains, parts, {.first = 2'000'000, .rest = 2'000'000});
    ASSERT_EQ(plan.size(), 1u);
    EXPECT_LE(plan[0].part, total / parts * 65 / 64 + 64) << parts;
  }
}

TEST(ShardPlan, WithoutGrainsNothingIsPadding) {
  const std::vector<TensorSpec> tensors = {{1000}, {17}, {320}};
  const std::vector<size_t> groups(3, 0);
  const auto plain = plan_shards(tensors, groups, 3);
  const auto anywhere = plan_shards(tensors, groups, std::vector<int64_t>(3, 1), 3);
  ASSERT_EQ(plain.size(), 1u);
  ASSERT_EQ(anywhere.size(), 1u);
  EXPECT_EQ(plain[0].part, 464);  // (1008 + 32 + 320) / 3, up to 16 elements
  EXPECT_EQ(anywhere[0].part, 464);
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
}  // namespace lockstep::inline v0::flat::shard_plan_test
