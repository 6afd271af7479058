#include "lockstep/amp/autocast.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::autocast_test {
namespace {

using amp::Autocast;

at::ScalarType product_type() {
  return at::mm(at::randn({4, 4}), at::randn({4, 4})).scalar_type();
}

TEST(Autocast, ProductsAreShortAndLossesAreNot) {
  EXPECT_EQ(product_type(), at::kFloat);
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    EXPECT_EQ(product_type(), at::kBFloat16);
    EXPECT_EQ(
        at::mse_loss(at::ones({4}, at::kBFloat16), at::ones({4}, at::kBFloat16)).scalar_type(),
        at::kFloat);
  }
  EXPECT_EQ(product_type(), at::kFloat);
}

TEST(Autocast, GuardsNestAndEndWithExceptions) {
  try {
    const Autocast outer(at::kCPU, at::kBFloat16);
    {
      const Autocast island(at::kCPU, at::kBFloat16, false);
      EXPECT_EQ(product_type(), at::kFloat);
      const Autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(product_type(), at::kHalf);
    }
    EXPECT_EQ(product_type(), at::kBFloat16);
    throw std::runtime_error("out of here");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(product_type(), at::kFloat);
  EXPECT_FALSE(amp::current_autocast(at::kCPU).enabled);
}

TEST(Autocast, GradientsHaveTheParametersType) {
  const at::Tensor weight = at::randn({4, 4}).requires_grad_();
  at::Tensor loss;
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    loss = at::mm(at::randn({4, 4}), weight).sum();
  }
  loss.backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
}

TEST(Autocast, AnotherThreadTakesTheSettings) {
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const amp::AutocastSettings settings = amp::current_autocast(at::kCPU);
  std::thread([&] {
    EXPECT_EQ(product_type(), at::kFloat);
    const Autocast here(settings);
    EXPECT_EQ(product_type(), at::kBFloat16);
  }).join();
}

TEST(Autocast, RefusesOtherTypesAndDevices) {
  EXPECT_THROW(Autocast(at::kCPU, at::kDouble), InvalidArgument);
  EXPECT_THROW(Autocast(at::kMeta, at::kBFloat16), InvalidArgument);
  EXPECT_EQ(product_type(), at::kFloat);
}

}  // namespace
}  // namespace lockstep::inline v0::autocast_test
