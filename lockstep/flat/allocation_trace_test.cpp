#include "lockstep/flat/allocation_trace.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

constexpr int64_t kNone = AllocationEvent::kNone;

TEST(AllocationTrace, SaysWhatLivesAtOnceAndWhatIsLeft) {
  // 100, and 30 within it; the first goes, and 60 come and stay.
  const AllocationTrace trace{{100, kNone}, {30, kNone}, {-30, 1}, {-100, 0}, {60, kNone}};
  EXPECT_EQ(most_at_once(trace), 130);
  EXPECT_EQ(left_over(trace), (std::vector<size_t>{4}));
  EXPECT_EQ(most_at_once(without(trace, {0})), 60);
  EXPECT_EQ(most_at_once(without(trace, {4})), 130);
  EXPECT_EQ(most_at_once({}), 0);
}

TEST(AllocationTrace, ALineGoesThroughTwoSizes) {
  EXPECT_EQ(on_line(10, 2, 14, 4, 8), 22);
  EXPECT_EQ(on_line(10, 2, 10, 4, 1'000'000), 10);
  EXPECT_EQ(on_line(10, 2, 13, 4, 5), 15);   // 14.5
  EXPECT_EQ(on_line(100, 2, 94, 4, 5), 91);  // falling
  EXPECT_EQ(on_line(int64_t{1} << 40, 1, int64_t{1} << 41, 2, 1 << 20), int64_t{1} << 60);
}

// What is most at once may be another moment with many samples than with few: each size is extended
// by itself, not the sum.
TEST(AllocationTrace, IsExtendedSizeBySize) {
  const auto of = [](int64_t n) {
    return AllocationTrace{{1000, kNone}, {-1000, 0}, {10 * n, kNone}, {7 * n, kNone}};
  };
  EXPECT_EQ(most_at_once(of(4)), 1000);
  const auto many = extended(of(2), 2, of(4), 4, 500);
  ASSERT_TRUE(many);
  EXPECT_EQ(*many, of(500));
  EXPECT_EQ(most_at_once(*many), 8500);
  // One more piece of a loop.
  AllocationTrace longer = of(4);
  longer.push_back({5, kNone});
  EXPECT_FALSE(extended(of(2), 2, longer, 4, 500));
  // Another order of what is freed.
  EXPECT_FALSE(
      extended({{4, kNone}, {4, kNone}, {-4, 0}}, 2, {{8, kNone}, {8, kNone}, {-8, 1}}, 4, 6));
}

TEST(AllocationLog, RecordsThisThreadsTensors) {
  const at::Tensor before = torch::ones({1000});
  AllocationLog log;
  at::Tensor kept = torch::empty({1000});
  {
    const at::Tensor gone = torch::empty({500});
  }
  EXPECT_EQ(log.allocation_of(before), std::nullopt);
  EXPECT_EQ(log.allocation_of(kept), std::optional<size_t>(0));
  const AllocationTrace trace = log.trace();
  EXPECT_EQ(trace, (AllocationTrace{{4000, kNone}, {2000, kNone}, {-2000, 1}}));
  EXPECT_EQ(log.now(), 4000);
  kept.reset();
  EXPECT_TRUE(left_over(log.trace()).empty());
  log.leave_out(true);
  const at::Tensor beside = torch::empty({100});
  log.leave_out(false);
  EXPECT_EQ(log.trace().size(), 4U);
  EXPECT_THROW(AllocationLog(), InvalidArgument);
}

TEST(AllocationLog, AndLiveBytesAroundItAndWithin) {
  LiveBytes outer;
  const at::Tensor before = torch::ones({1000});
  {
    AllocationLog log;
    const LiveBytes inner;
    const at::Tensor one = torch::ones({100});
    EXPECT_EQ(inner.now(), 400);
    EXPECT_EQ(log.now(), 400);
    EXPECT_EQ(outer.now(), 4400);
    EXPECT_EQ(log.trace().size(), 1U);
  }
  EXPECT_EQ(outer.most(), 4400);
  outer.forget_most();
  EXPECT_EQ(outer.most(), 4000);
  const AllocationLog next;  // the former one is gone
  EXPECT_TRUE(next.trace().empty());
}

// A forward and a backward with few samples say to the byte what many take at once.
TEST(AllocationLog, AStepOfFewSamplesSaysWhatManyTake) {
  at::set_num_threads(1);
  torch::nn::Linear first(64, 256), second(256, 32);
  const auto trace = [&](int64_t samples) {
    const at::Tensor input = torch::ones({samples, 64});
    AllocationLog log;
    second->forward(torch::relu(first->forward(input))).square().mean().backward();
    return log.trace();
  };
  (void)trace(2);
  const AllocationTrace few = trace(2), more = trace(4), many = trace(300);
  const auto foretold = extended(few, 2, more, 4, 300);
  ASSERT_TRUE(foretold);
  EXPECT_EQ(most_at_once(*foretold), most_at_once(many));
  EXPECT_EQ(*foretold, many);
  EXPECT_GT(most_at_once(many), 300 * 4 * (256 + 256 + 32));
}

}  // namespace
}  // namespace lockstep::inline v0
