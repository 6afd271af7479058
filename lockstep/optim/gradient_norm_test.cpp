#include "lockstep/optim/gradient_norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::optim::gradient_norm_test {

TEST(GradientNorm, IsTheSumOfSquares) {
  torch::manual_seed(5);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int64_t numel : {0, 1, 15, 16, 17, 16384, 16385, 100'003}) {
      const auto tensor = torch::randn({numel}, at::kDouble).to(dtype);
      const double expected = tensor.to(at::kDouble).square().sum().item<double>();
      EXPECT_NEAR(sum_of_squares({tensor}), expected, 1e-12 * expected)
          << toString(dtype) << " " << numel;
    }
  }
  EXPECT_EQ(global_norm({torch::tensor({3.0F}), at::Tensor(), torch::tensor({4.0})}), 5.0);
  EXPECT_EQ(global_norm({}), 0.0);
}

TEST(GradientNorm, TakesAnyStrides) {
  const auto tensor = torch::arange(12, at::kFloat).view({3, 4});
  const double expected = 506;  // 0 + 1 + 4 + ... + 121
  EXPECT_EQ(sum_of_squares({tensor.t()}), expected);
  EXPECT_EQ(sum_of_squares({torch::stack({tensor, tensor}, 2).select(2, 0)}), expected);
  EXPECT_EQ(sum_of_squares({torch::ones({1}).expand({7})}), 7.0);
}

// Cases that a float32 sum would get wrong: many elements that contribute 1e-12 of the whole each;
// and squares above float32's range.
TEST(GradientNorm, AccumulatesInFloat64) {
  const auto tensor = torch::full({1 << 20}, 1e-3F);
  tensor[0] = 1000.0F;
  const double small = static_cast<double>(1e-3F);
  EXPECT_NEAR(sum_of_squares({tensor}), 1e6 + ((1 << 20) - 1) * small * small, 1e-6);
  EXPECT_NEAR(global_norm({torch::full({4}, 1e30F)}), 2e30, 1e24);
}

TEST(GradientNorm, DoesNotDependOnThreadsOrPlace) {
  torch::manual_seed(6);
  const auto memory = torch::randn({100'100});
  const int before = at::get_num_threads();
  const double expected = sum_of_squares({memory.narrow(0, 0, 100'000).clone()});
  for (const int threads : {1, 2, 4}) {
    at::set_num_threads(threads);
    memory.narrow(0, 3, 100'000).copy_(memory.narrow(0, 0, 100'000).clone());
    EXPECT_EQ(sum_of_squares({memory.narrow(0, 3, 100'000)}), expected);
    memory.narrow(0, 0, 100'000).copy_(memory.narrow(0, 3, 100'000).clone());
  }
  at::set_num_threads(before);
}

TEST(GradientNorm, ShowsWhatIsNotFinite) {
  const auto tensor = torch::zeros({40'000});
  tensor[39'999] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(sum_of_squares({tensor})));
  tensor[39'998] = std::nanf("");
  EXPECT_TRUE(std::isnan(sum_of_squares({tensor})));
}

TEST(GradientNorm, RefusesOtherTensors) {
  EXPECT_THROW(sum_of_squares({torch::ones({2}, at::kLong)}), InvalidArgument);
  EXPECT_THROW(sum_of_squares({torch::ones({2}).to_sparse()}), InvalidArgument);
}

}  // namespace lockstep::inline v0::optim::gradient_norm_test
