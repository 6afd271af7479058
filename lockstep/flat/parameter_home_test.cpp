#include "lockstep/flat/parameter_home.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <vector>

#include "lockstep/hooks/layer_hook.h"

namespace lockstep::inline v0::flat_test {
namespace {

at::Tensor counted(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes);
}

TEST(ParameterHome, ADenseParameterKeepsItsStridesAndItsValues) {
  const at::Tensor flat = at::zeros({64});
  at::Tensor parameter = counted({3, 4}).t().requires_grad_();
  const at::Tensor before = parameter.detach().clone();
  ASSERT_EQ(parameter.strides(), at::IntArrayRef({1, 4}));
  flat::move_home(parameter, flat, 16);
  EXPECT_EQ(parameter.strides(), at::IntArrayRef({1, 4}));
  EXPECT_TRUE(at::equal(parameter, before));
  EXPECT_TRUE(parameter.requires_grad());
  EXPECT_TRUE(parameter.is_leaf());
  EXPECT_EQ(flat[17].item<float>(), 1);
  EXPECT_TRUE(flat::is_home(parameter, flat, 16));
}

TEST(ParameterHome, AnAdoptedPlaceKeepsItsOwnValues) {
  const at::Tensor flat = at::zeros({64});
  flat.slice(0, 16, 28).copy_(counted({12}));
  at::Tensor parameter = at::zeros({4, 3}).t().requires_grad_();
  flat::adopt_home(parameter, flat, 16);
  EXPECT_TRUE(flat::is_home(parameter, flat, 16));
  EXPECT_EQ(parameter.strides(), at::IntArrayRef({1, 3}));
  EXPECT_TRUE(parameter.requires_grad());
  EXPECT_EQ(parameter[1][2].item<float>(), 7);
}

TEST(ParameterHome, AParameterWithGapsBecomesContiguous) {
  const at::Tensor flat = at::zeros({64});
  at::Tensor parameter = counted({4, 6}).narrow(1, 1, 3);
  const at::Tensor before = parameter.clone();
  flat::move_home(parameter, flat, 0);
  EXPECT_TRUE(parameter.is_contiguous());
  EXPECT_TRUE(at::equal(parameter, before));
}

TEST(ParameterHome, APlaceIsCountedFromTheBuffersOwnBeginning) {
  const at::Tensor flat = at::zeros({64}).narrow(0, 8, 32);
  at::Tensor parameter = counted({5});
  flat::move_home(parameter, flat, 4);
  EXPECT_EQ(flat[5].item<float>(), 1);
  EXPECT_TRUE(flat::is_home(parameter, flat, 4));
  EXPECT_FALSE(flat::is_home(parameter, flat, 5));
}

TEST(ParameterHome, HooksMoveWithTheirParameter) {
  struct Negative final : hooks::LayerHook {
    at::Tensor forward(hooks::LayerCall& call) override { return -call.compute(call.input()); }
  };
  torch::nn::Linear layer(4, 3);
  const at::Tensor x = counted({2, 4}), expected = -layer(x);
  hooks::add_hook(*layer, std::make_shared<Negative>());
  const at::Tensor flat = at::zeros({64});
  flat::move_home(layer->weight, flat, 0);
  flat::move_home(layer->bias, flat, 32);
  EXPECT_TRUE(flat::is_home(layer->weight, flat, 0));
  EXPECT_TRUE(flat::is_home(layer->bias, flat, 32));
  EXPECT_TRUE(at::equal(layer(x), expected));
}

TEST(ParameterHome, SomebodyElseMayTakeItAway) {
  const at::Tensor flat = at::zeros({64}), other = at::zeros({64});
  at::Tensor parameter = counted({5});
  flat::move_home(parameter, flat, 0);
  flat::move_home(parameter, other, 0);
  EXPECT_FALSE(flat::is_home(parameter, flat, 0));
  flat::move_home(parameter, flat, 0);
  parameter.set_data(parameter.to(at::kDouble));
  EXPECT_FALSE(flat::is_home(parameter, flat, 0));
  EXPECT_TRUE(flat::is_home(at::empty({0}), flat, 0));  // it has no memory
}

TEST(ParameterHome, SharedMemoryIsFoundWhereverItBegins) {
  const at::Tensor whole = counted({4, 4});
  const std::vector<at::Tensor> apart = {whole.narrow(0, 2, 2), whole.narrow(0, 0, 2),
                                         at::empty({0})};
  EXPECT_EQ(flat::find_shared_memory(apart), std::nullopt);
  const std::vector<at::Tensor> shared = {whole.narrow(0, 3, 1), counted({3}), whole.t()};
  const auto found = flat::find_shared_memory(shared);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(*found, std::pair(size_t{2}, size_t{0}));  // by address
}

TEST(ParameterHome, WhatCannotBeFlat) {
  EXPECT_TRUE(flat::can_be_flat(counted({2})));
  EXPECT_FALSE(flat::can_be_flat(at::Tensor()));
  EXPECT_FALSE(flat::can_be_flat(at::zeros({2}, at::kLong)));
  EXPECT_FALSE(flat::can_be_flat(at::zeros({2}).to_sparse()));
}

}  // namespace
}  // namespace lockstep::inline v0::flat_test
