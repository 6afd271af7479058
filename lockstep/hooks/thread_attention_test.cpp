#include "lockstep/hooks/thread_attention.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <thread>

#include "lockstep/core/errors.h"
#include "lockstep/hooks/thread_generator.h"

namespace lockstep::inline v0::hooks {
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

// Attention's own dropout draws from the thread's generator, before an attention was replaced, after, and within.
TEST(ThreadAttention, LeavesTheThreadsGeneratorAlone) {
  const at::Tensor x = at::randn({1, 2, 8, 4});
  const auto drawn = [&] {
    const at::Generator generator = at::detail::createCPUGenerator(7);
    const ThreadGenerator scope([&]() -> const at::Generator& { return generator; });
    return at::scaled_dot_product_attention(x, x, x, {}, 0.5);
  };
  const at::Tensor expected = drawn();
  {
    const ThreadAttention scope([](const AttentionCall& call) {
      return at::scaled_dot_product_attention(call.queries, call.keys, call.values, {},
                                              call.dropout);
    });
    EXPECT_TRUE(at::equal(drawn(), expected));
  }
  EXPECT_TRUE(at::equal(drawn(), expected));
}

TEST(ThreadAttention, ScopesMayEndInAnyOrder) {
  const at::Tensor x = at::randn({1, 2, 3, 4});
  const at::Tensor zeros = at::zeros_like(x), expected = attend(x);
  const auto nothing = [](const AttentionCall& call) { return at::zeros_like(call.queries); };
  const at::Generator generator = at::detail::createCPUGenerator(7);
  auto first = std::make_unique<ThreadAttention>(nothing);
  auto second =
      std::make_unique<ThreadGenerator>([&]() -> const at::Generator& { return generator; });
  EXPECT_THROW(ThreadAttention{nothing}, InvalidArgument);
  EXPECT_TRUE(at::equal(attend(x), zeros));
  first.reset();
  EXPECT_TRUE(at::equal(attend(x), expected));
  const at::Generator same = at::detail::createCPUGenerator(7);
  EXPECT_TRUE(at::equal(at::rand({4}), at::rand({4}, same)));
  second.reset();
  const ThreadAttention again(nothing);
  EXPECT_TRUE(at::equal(attend(x), zeros));
}

}  // namespace
}  // namespace lockstep::inline v0::hooks
