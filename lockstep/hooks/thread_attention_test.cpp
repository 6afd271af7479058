#include "lockstep/hooks/thread_attention.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <thread>

#include "lockstep/hooks/thread_generator.h"

namespace lockstep::hooks {
namespace {

at::Tensor attend(const at::Tensor& x, bool is_causal = false) {
  return at::scaled_dot_product_attention(x, x, x, {}, 0.0, is_causal, 0.5);
}

TEST(ThreadAttention, IsCalledInTheOperationsPlace) {
  const at::Tensor x = at::randn({1, 2, 3, 4}).requires_grad_();
  const at::Tensor expected = attend(x, true);
  std::optional<AttentionCall> seen;
  {
    const ThreadAttention scope([&](const AttentionCall& call) {
      seen = call;
      // Within, it is libtorch's.
      return 2 * at::scaled_dot_product_attention(call.queries, call.keys, call.values, {}, 0.0,
                                                  call.is_causal, call.scale);
    });
    const at::Tensor twice = attend(x, true);
    EXPECT_TRUE(at::allclose(twice, 2 * expected));
    twice.sum().backward();
  }
  ASSERT_TRUE(seen);
  EXPECT_TRUE(seen->is_causal);
  EXPECT_FALSE(seen->mask.defined());
  EXPECT_EQ(seen->scale, 0.5);
  EXPECT_EQ(seen->dropout, 0);
  const at::Tensor gradient = x.grad().clone();
  x.mutable_grad().reset();
  (2 * expected).sum().backward();
  EXPECT_TRUE(at::allclose(gradient, x.grad()));
  EXPECT_TRUE(at::equal(attend(x, true), expected));
}

TEST(ThreadAttention, OtherThreadsAndOperationsAreAsTheyWere) {
  const at::Tensor x = at::randn({1, 2, 3, 4});
  const at::Tensor expected = attend(x);
  torch::nn::Linear linear(4, 4);
  const at::Tensor product = linear->forward(x);
  const ThreadAttention scope(
      [](const AttentionCall& call) { return at::zeros_like(call.queries); });
  EXPECT_TRUE(at::equal(attend(x), at::zeros_like(x)));
  EXPECT_TRUE(at::equal(linear->forward(x), product));
  at::Tensor there;
  std::thread([&] { there = attend(x); }).join();
  EXPECT_TRUE(at::equal(there, expected));
}

TEST(ThreadAttention, StandsAroundAThreadsGenerator) {
  const at::Tensor x = at::randn({1, 2, 3, 4});
  const ThreadAttention scope(
      [](const AttentionCall& call) { return at::zeros_like(call.queries); });
  const at::Generator generator;
  {
    const ThreadGenerator within([&]() -> const at::Generator& { return generator; });
    EXPECT_TRUE(at::equal(attend(x), at::zeros_like(x)));
  }
  EXPECT_TRUE(at::equal(attend(x), at::zeros_like(x)));
}

}  // namespace
}  // namespace lockstep::hooks
