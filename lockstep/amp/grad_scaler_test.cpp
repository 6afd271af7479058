#include "lockstep/amp/grad_scaler.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::grad_scaler_test {
namespace {

using amp::GradScaler;
using amp::GradScalerOptions;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

// A weight, and an optimizer that subtracts its gradient.
struct Model {
  at::Tensor weight = at::ones({2}).requires_grad_();
  torch::optim::SGD sgd{std::vector<at::Tensor>{weight}, torch::optim::SGDOptions(1.0)};

  // Sets the loss's gradients, scaled.
  void backward(const GradScaler& scaler, const at::Tensor& gradient) {
    weight.mutable_grad() = at::Tensor();
    scaler.scale((weight * gradient).sum()).backward();
  }
};

TEST(GradScaler, AStepIsThatWithoutScaling) {
  GradScaler scaler;
  EXPECT_EQ(scaler.current_scale(), 65536);
  Model model;
  model.backward(scaler, at::tensor({0.25f, -3.0f}));
  EXPECT_TRUE(at::equal(model.weight.grad(), at::tensor({0.25f * 65536, -3.0f * 65536})));
  EXPECT_TRUE(scaler.step(model.sgd));
  EXPECT_TRUE(at::equal(model.weight.grad(), at::tensor({0.25f, -3.0f})));
  EXPECT_TRUE(at::equal(model.weight, at::tensor({0.75f, 4.0f})));
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 65536);
}

// The scale of torch.amp.GradScaler(init_scale=4, growth_interval=2) after each step, for steps
// that are good (g) or not (b).
TEST(GradScaler, FollowsPyTorchsScale) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 2});
  Model model;
  const std::string steps = "ggggbgbbggg";
  const double scales[] = {4, 8, 8, 16, 8, 8, 4, 2, 2, 4, 4};
  for (size_t i = 0; i < steps.size(); ++i) {
    model.backward(scaler, at::tensor({1.0f, steps[i] == 'g' ? 0.0f : kInf}));
    const at::Tensor before = model.weight.detach().clone();
    EXPECT_EQ(scaler.step(model.sgd), steps[i] == 'g') << i;
    EXPECT_EQ(at::equal(before, model.weight), steps[i] == 'b') << i;
    scaler.update();
    EXPECT_EQ(scaler.current_scale(), scales[i]) << i;
  }
}

TEST(GradScaler, NanCountsAndTheScaleStaysFinite) {
  GradScaler scaler({.init_scale = 0x1p127, .growth_interval = 1});
  Model model;
  model.backward(scaler, at::tensor({0.0f, 0.0f}));
  scaler.step(model.sgd);
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 0x1p127);
  model.weight.mutable_grad() = at::full({2}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(scaler.step(model.sgd));
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 0x1p126);
  scaler.update(8.0);
  EXPECT_EQ(scaler.current_scale(), 8);
}

TEST(GradScaler, UnscaledGradientsCanBeClippedFirst) {
  GradScaler scaler;
  Model model;
  model.backward(scaler, at::tensor({3.0f, 4.0f}));
  scaler.unscale(model.sgd);
  torch::nn::utils::clip_grad_norm_({model.weight}, 2.5);
  EXPECT_TRUE(scaler.step(model.sgd));
  EXPECT_TRUE(at::allclose(model.weight, at::tensor({-0.5f, -1.0f}), 1e-5, 1e-5));
}

TEST(GradScaler, AccumulatesAndServesSeveralOptimizers) {
  GradScaler scaler;
  Model a, b;
  for (int micro = 0; micro < 2; ++micro)
    scaler.scale((a.weight * at::tensor({1.0f, 2.0f})).sum()).backward();
  b.backward(scaler, at::tensor({kInf, 0.0f}));
  EXPECT_TRUE(scaler.step(a.sgd));
  EXPECT_FALSE(scaler.step(b.sgd));
  scaler.update();
  EXPECT_TRUE(at::equal(a.weight, at::tensor({-1.0f, -3.0f})));
  EXPECT_EQ(scaler.current_scale(), 32768);
}

TEST(GradScaler, SparseGradientsAreAddedUpFirst) {
  GradScaler scaler({.init_scale = 2});
  Model model;
  const float large = std::numeric_limits<float>::max() * 0.75f;
  model.weight.mutable_grad() =
      at::sparse_coo_tensor(at::tensor({1, 1}, at::kLong).view({1, 2}), at::full({2}, large), {2});
  EXPECT_FALSE(scaler.step(model.sgd));
  scaler.update();
  model.weight.mutable_grad() = at::sparse_coo_tensor(at::tensor({1, 1}, at::kLong).view({1, 2}),
                                                      at::tensor({1.0f, 2.0f}), {2});
  EXPECT_TRUE(scaler.step(model.sgd));  // scale 1
  EXPECT_TRUE(at::equal(model.weight, at::tensor({1.0f, -2.0f})));
}

TEST(GradScaler, MistakesAreOneLine) {
  GradScaler scaler;
  Model model;
  EXPECT_THAT(message_of<InvalidArgument>([&] { scaler.step(model.sgd); }),
              HasSubstr("no parameter"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { scaler.update(); }), HasSubstr("update() without"));
  model.backward(scaler, at::ones({2}));
  scaler.unscale(model.sgd);
  EXPECT_THAT(message_of<InvalidArgument>([&] { scaler.unscale(model.sgd); }),
              HasSubstr("already"));
  scaler.step(model.sgd);
  EXPECT_THAT(message_of<InvalidArgument>([&] { scaler.step(model.sgd); }), HasSubstr("already"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { scaler.unscale(model.sgd); }),
              HasSubstr("after step()"));
  scaler.update();
  at::Tensor half = at::ones({2}, at::kHalf).requires_grad_();
  half.mutable_grad() = at::ones({2}, at::kHalf);
  torch::optim::SGD sgd({half}, torch::optim::SGDOptions(1.0));
  EXPECT_THAT(message_of<InvalidArgument>([&] { scaler.step(sgd); }), HasSubstr("float16"));
  EXPECT_THAT(message_of<InvalidArgument>([] { GradScaler({.growth_factor = 1}); }),
              HasSubstr("growth_factor"));
  EXPECT_THAT(message_of<InvalidArgument>([] { GradScaler({.backoff_factor = 1}); }),
              HasSubstr("backoff_factor"));
}

TEST(GradScaler, DisabledItPassesEverythingThrough) {
  GradScaler scaler({.enabled = false});
  Model model;
  model.backward(scaler, at::tensor({kInf, 1.0f}));
  EXPECT_TRUE(scaler.step(model.sgd));
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 1);
}

TEST(GradScaler, StateComesBack) {
  GradScaler scaler({.init_scale = 4, .growth_interval = 3});
  Model model;
  for (int i = 0; i < 2; ++i) {
    model.backward(scaler, at::ones({2}));
    scaler.step(model.sgd);
    scaler.update();
  }
  GradScaler other;
  other.load_state(scaler.state());
  EXPECT_EQ(other.state(), scaler.state());
  model.backward(other, at::ones({2}));
  other.step(model.sgd);
  other.update();
  EXPECT_EQ(other.current_scale(), 8);
  auto bad = scaler.state();
  bad.scale = -1;
  EXPECT_THAT(message_of<InvalidArgument>([&] { other.load_state(bad); }), HasSubstr("scale"));
}

// One rank's infinity makes all ranks skip the step.
TEST(GradScaler, RanksAgree) {
  testing::run_threads(3, [](Communicator& comm) {
    GradScaler scaler(comm);
    Model model;
    model.backward(scaler, at::tensor({comm.rank() == 1 ? kInf : 1.0f, 0.0f}));
    EXPECT_FALSE(scaler.step(model.sgd));
    scaler.update();
    EXPECT_EQ(scaler.current_scale(), 32768);
    model.backward(scaler, at::tensor({1.0f, 0.0f}));
    EXPECT_TRUE(scaler.step(model.sgd));
  });
}

}  // namespace
}  // namespace lockstep::inline v0::grad_scaler_test
