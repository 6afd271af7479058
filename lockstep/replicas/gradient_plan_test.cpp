#include "lockstep/replicas/gradient_plan.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <set>

namespace lockstep::inline v0::gradient_plan_test {
namespace {

using internal::plan_gradients;
using internal::shapes_word;

TEST(GradientPlan, LongOnesAreAloneAndFirst) {
  const std::vector<flat::TensorSpec> specs = {
      {.numel = 10}, {.numel = 1000}, {.numel = 20}, {.numel = 30, .dtype = at::kDouble}};
  const auto plan = plan_gradients(specs, 1 << 20, 4000);
  ASSERT_EQ(plan.size(), 3u);
  ASSERT_EQ(plan[0].slots.size(), 1u);
  EXPECT_EQ(plan[0].slots[0].tensor, 1u);
  std::set<size_t> floats, doubles;
  for (size_t i = 1; i < plan.size(); ++i) {
    for (const auto& slot : plan[i].slots)
      (plan[i].dtype == at::kDouble ? doubles : floats).insert(slot.tensor);
  }
  EXPECT_EQ(floats, (std::set<size_t>{0, 2}));
  EXPECT_EQ(doubles, (std::set<size_t>{3}));
}

TEST(GradientPlan, WithoutBucketsEachIsAloneInOrder) {
  const std::vector<flat::TensorSpec> specs = {{.numel = 10}, {.numel = 1000}, {.numel = 20}};
  const auto plan = plan_gradients(specs, 0, 4000);
  ASSERT_EQ(plan.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan[i].slots.size(), 1u);
    EXPECT_EQ(plan[i].slots[0].tensor, i);
    EXPECT_EQ(plan[i].numel, specs[i].numel);
  }
}

TEST(GradientPlan, ABucketIsFullAtItsSize) {
  const std::vector<flat::TensorSpec> specs(10, {.numel = 16});
  const auto plan = plan_gradients(specs, 128, 4000);
  EXPECT_EQ(plan.size(), 5u);
  EXPECT_TRUE(plan_gradients({}, 128, 4000).empty());
}

TEST(GradientPlan, TheWordDependsOnShapesDtypesAndOrder) {
  const at::Tensor a = at::ones({2, 3}), b = at::ones({3, 2}), c = at::ones({2, 3}, at::kDouble);
  const auto word = [](std::vector<at::Tensor> tensors) { return shapes_word(tensors); };
  EXPECT_EQ(word({a, b}), word({at::ones({2, 3}), b}));
  EXPECT_NE(word({a, b}), word({b, a}));
  EXPECT_NE(word({a}), word({b}));
  EXPECT_NE(word({a}), word({c}));
  EXPECT_NE(word({a}), word({a, at::ones({0})}));
  EXPECT_NE(word({at::ones({6})}), word({a}));
}

}  // namespace
}  // namespace lockstep::inline v0::gradient_plan_test
