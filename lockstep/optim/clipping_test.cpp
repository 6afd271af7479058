// Clipping, unscaling and skipping inside the step, compared with torch's separate passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "lockstep/core/errors.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/internal/test_parameters.h"
#include "lockstep/optim/sgd.h"

namespace lockstep::inline v0::optim::clipping_test {

using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Clipping, IsClipGradNorm) {
  for (const double max_norm : {1.0, 60.0, 1e6}) {  // always, sometimes, never
    SCOPED_TRACE(max_norm);
    const auto ours = test::parameters(at::kFloat), theirs = test::parameters(at::kFloat);
    FusedAdamW optimizer(ours, AdamWOptions(1e-2));
    torch::optim::AdamW reference(theirs, AdamWOptions(1e-2));
    for (int step = 0; step < 100; ++step) {
      const auto gradients = test::gradients(theirs, step, step % 2 == 0 ? 0.5 : 2.0);
      test::give_gradients(ours, gradients);
      test::give_gradients(theirs, gradients);
      const StepResult result = optimizer.step({.max_norm = max_norm});
      const double norm = torch::nn::utils::clip_grad_norm_(theirs, max_norm);
      reference.step();
      ASSERT_TRUE(result.grad_norm.has_value());
      EXPECT_NEAR(*result.grad_norm, norm, 1e-6 * norm);
      EXPECT_FALSE(result.skipped);
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(torch::allclose(ours[i].grad(), theirs[i].grad(), 1e-6, 1e-9))
            << "the clipped gradient " << i;
      }
    }
    EXPECT_LT(test::relative_distance(ours, theirs), 1e-6);
  }
}

TEST(Clipping, LeavesTheBitsAloneBelowTheLimit) {
  const auto clipped = test::parameters(at::kFloat), plain = test::parameters(at::kFloat);
  FusedAdamW a(clipped, AdamWOptions(1e-2)), b(plain, AdamWOptions(1e-2));
  for (int step = 0; step < 5; ++step) {
    const auto gradients = test::gradients(plain, step);
    test::give_gradients(clipped, gradients);
    test::give_gradients(plain, gradients);
    a.step({.max_norm = 1e6});
    EXPECT_FALSE(b.step(StepOptions{}).grad_norm.has_value());
  }
  for (size_t i = 0; i < clipped.size(); ++i) EXPECT_TRUE(clipped[i].equal(plain[i]));
}

TEST(Scaling, IsUndoneInTheStep) {
  const auto scaled = test::parameters(at::kFloat), plain = test::parameters(at::kFloat);
  FusedSGD a(scaled, SGDOptions(0.1).momentum(0.9)), b(plain, SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    test::give_gradients(scaled, test::gradients(plain, step, 1024));  // a power of two: exact
    test::give_gradients(plain, test::gradients(plain, step));
    const StepResult result = a.step(
        {.max_norm = 1.0, .grad_scale = torch::tensor(1024.0F), .found_inf = torch::zeros({1})});
    const StepResult expected = b.step({.max_norm = 1.0});
    EXPECT_EQ(*result.grad_norm, *expected.grad_norm);
  }
  EXPECT_LT(test::relative_distance(scaled, plain), 1e-7);
}

// Parameters, momentum and step count do not change.
TEST(Scaling, SkipsWhatIsNotFinite) {
  const auto skipping = test::parameters(at::kFloat), plain = test::parameters(at::kFloat);
  FusedAdamW a(skipping, AdamWOptions(1e-2)), b(plain, AdamWOptions(1e-2));
  for (int step = 0; step < 6; ++step) {
    const auto gradients = test::gradients(plain, step);
    if (step % 3 == 1) {
      auto broken = test::gradients(plain, step);
      broken[3].view({-1})[7] = step == 1 ? kInfinity : std::nanf("");
      test::give_gradients(skipping, broken);
      const StepResult found = a.step({.grad_scale = torch::tensor(1.0F)});
      EXPECT_TRUE(found.skipped);  // detected in the gradients
      const StepResult policy = a.step({.max_norm = 1.0, .on_non_finite = NonFinite::kSkip});
      EXPECT_TRUE(policy.skipped);
    } else if (step == 3) {  // another rank reported it
      test::give_gradients(skipping, gradients);
      EXPECT_TRUE(
          a.step({.grad_scale = torch::tensor(2.0F), .found_inf = torch::ones({})}).skipped);
    } else {
      test::give_gradients(skipping, gradients);
      test::give_gradients(plain, gradients);
      EXPECT_FALSE(a.step({.grad_scale = torch::tensor(1.0F)}).skipped);
      b.step();
    }
  }
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(skipping[i].equal(plain[i])) << i;
}

TEST(Clipping, NamesTheFirstGradientThatIsNotFinite) {
  const auto parameters = test::parameters(at::kFloat);
  const auto before = test::parameters(at::kFloat);
  FusedAdamW optimizer(parameters, AdamWOptions(1e-2));
  auto gradients = test::gradients(parameters, 0);
  gradients[4].view({-1})[2] = kInfinity;
  test::give_gradients(parameters, gradients);
  try {
    optimizer.step({.max_norm = 1.0});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("parameter 4 of group 0"));
  }
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(parameters[i].equal(before[i]));
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(Clipping, RefusesOptionsOutOfRange) {
  auto parameter = torch::ones({2}).set_requires_grad(true);
  parameter.mutable_grad() = torch::ones({2});
  FusedSGD optimizer({parameter}, SGDOptions(1));
  EXPECT_THROW(optimizer.step({.max_norm = -1.0}), InvalidArgument);
  EXPECT_THROW(optimizer.step({.grad_scale = torch::zeros({})}), InvalidArgument);
  EXPECT_THROW(optimizer.step({.grad_scale = torch::ones({2})}), InvalidArgument);
  EXPECT_THROW(optimizer.step({.found_inf = torch::zeros({}, at::kLong)}), InvalidArgument);
  EXPECT_TRUE(parameter.equal(torch::ones({2})));
}

}  // namespace lockstep::inline v0::optim::clipping_test
