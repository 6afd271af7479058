#include "lockstep/cli/engine/diff/tensor_diff.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::inline v0::engine::tensor_diff_test {

using Kind = TensorDifference::Kind;

TensorDifference one(const at::Tensor& a, const at::Tensor& b, double tolerance = 0) {
  const TensorsDiff diff = diff_tensors({{"t", a}}, {{"t", b}}, tolerance);
  EXPECT_EQ(diff.compared, 1);
  EXPECT_EQ(diff.differences.size(), 1u);
  return diff.differences.empty() ? TensorDifference{} : diff.differences[0];
}
bool no_difference(const at::Tensor& a, const at::Tensor& b, double tolerance = 0) {
  return diff_tensors({{"t", a}}, {{"t", b}}, tolerance).differences.empty();
}

TEST(TensorDiff, CountsElementsAndTheGreatestDifference) {
  const at::Tensor a = at::arange(600'000, at::kDouble);
  at::Tensor b = a.clone();
  b[100] += 0.5;
  b[599'999] += 2;
  const TensorDifference difference = one(a, b);
  EXPECT_EQ(difference.kind, Kind::kValues);
  EXPECT_EQ(difference.elements, 600'000);
  EXPECT_EQ(difference.different, 2);
  EXPECT_EQ(difference.max_abs, 2);
  EXPECT_NEAR(difference.max_rel, 0.5 / 100.5, 1e-12);
  EXPECT_TRUE(no_difference(a, a.clone()));
  EXPECT_TRUE(no_difference(a, b, 0.01));
  EXPECT_EQ(one(a, b, 1e-5).different, 1);  // 2 of 600,001 is within it
}

TEST(TensorDiff, NamesAreMatched) {
  const at::Tensor x = at::ones({2});
  const TensorsDiff diff = diff_tensors({{"b", x}, {"a", x}}, {{"c", x}, {"b", x}}, 0);
  EXPECT_EQ(diff.compared, 1);
  ASSERT_EQ(diff.differences.size(), 2u);
  EXPECT_EQ(diff.differences[0].name, "a");
  EXPECT_EQ(diff.differences[0].kind, Kind::kMissingInB);
  EXPECT_EQ(diff.differences[1].name, "c");
  EXPECT_EQ(diff.differences[1].kind, Kind::kMissingInA);
}

TEST(TensorDiff, ShapesAndDtypes) {
  const TensorDifference shape = one(at::ones({2, 3}), at::ones({3, 2}));
  EXPECT_EQ(shape.kind, Kind::kShape);
  EXPECT_EQ(shape.a, "[2, 3]");
  EXPECT_EQ(shape.b, "[3, 2]");
  const TensorDifference dtype = one(at::full({4}, 1.001), at::full({4}, 1.001).to(at::kBFloat16));
  EXPECT_EQ(dtype.kind, Kind::kDtype);
  EXPECT_EQ(dtype.different, 4);
  EXPECT_NEAR(dtype.max_abs, 0.001, 1e-4);
  EXPECT_EQ(one(at::ones({4}), at::ones({4}, at::kLong)).different, 0);
}

TEST(TensorDiff, UnusualValues) {
  const double nan = std::nan(""), inf = INFINITY;
  EXPECT_TRUE(no_difference(at::tensor({nan, inf, -0.0}), at::tensor({nan, inf, 0.0})));
  EXPECT_EQ(one(at::tensor({nan}), at::tensor({1.0})).max_abs, inf);
  EXPECT_EQ(one(at::tensor({inf}), at::tensor({1.0}), 0.5).different, 1);
  EXPECT_EQ(one(at::tensor({nan}), at::tensor({1.0}), 0.5).different, 1);
  const int64_t big = int64_t{1} << 60;
  EXPECT_EQ(one(at::tensor({big}), at::tensor({big + 1})).different, 1);
  EXPECT_TRUE(no_difference(at::zeros({0}), at::zeros({0})));
  EXPECT_EQ(one(at::scalar_tensor(1.0), at::scalar_tensor(2.0)).max_rel, 0.5);
  EXPECT_EQ(one(at::tensor({1, 0}).to(at::kBool), at::tensor({1, 1}).to(at::kBool)).different, 1);
  EXPECT_EQ(one(at::ones({2}, at::kComplexFloat), at::zeros({2}, at::kComplexFloat)).different, 2);
  EXPECT_EQ(one(at::ones({3}).to(at::kFloat8_e5m2), at::zeros({3}).to(at::kFloat8_e5m2)).different,
            3);
  EXPECT_EQ(one(at::ones({3}).to(at::kUInt64), at::zeros({3}).to(at::kUInt64)).different, 3);
}

TEST(TensorDiff, StridesDoNotMatter) {
  const at::Tensor a = at::arange(12).view({3, 4});
  EXPECT_TRUE(no_difference(a.t(), a.t().contiguous()));
}

}  // namespace lockstep::inline v0::engine::tensor_diff_test
