#include "lockstep/activations/checkpoint_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/model/transformer_lm.h"

namespace lockstep::inline v0::checkpoint_layers_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::nn::Sequential;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width, bool norm = false) {
    linear = register_module("linear", torch::nn::Linear(width, width));
    if (norm) batch = register_module("batch", torch::nn::BatchNorm1d(width));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::dropout(torch::gelu(linear(x)), 0.2, is_training());
    return batch ? batch(y) : y;
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d batch{nullptr};
};
TORCH_MODULE(Block);

Sequential net() {
  torch::manual_seed(3);
  return Sequential(Block(6), Block(6), Block(6), torch::nn::Linear(6, 2));
}

struct Found {
  std::vector<at::Tensor> gradients;
  at::Tensor output;
};

template <typename M, typename... Inputs>
Found run(M& model, const Inputs&... inputs) {
  for (const at::Tensor& p : model->parameters()) p.mutable_grad().reset();
  torch::manual_seed(5);
  Found found;
  found.output = model->forward(inputs...);
  found.output.square().mean().backward();
  for (const at::Tensor& p : model->parameters()) found.gradients.push_back(p.grad().clone());
  return found;
}

void expect_same_bits(const Found& a, const Found& b) {
  EXPECT_TRUE(a.output.equal(b.output));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i)
    EXPECT_TRUE(a.gradients[i].equal(b.gradients[i])) << i;
}

TEST(CheckpointLayers, ChildrenOfASequential) {
  const at::Tensor x = at::linspace(-1, 1, 24).view({4, 6});
  Sequential model = net();
  const Found without = run(model, x);
  std::vector<HookHandle> handles = checkpoint_layers(*model, {.names = {"0", "1", "2"}});
  EXPECT_EQ(handles.size(), 3u);
  expect_same_bits(run(model, x), without);
  int runs = 0;
  HookHandle counter =
      wrap_forward(*model, "1.linear", [&](const Forward& forward, const at::Tensor& y) {
        ++runs;
        return forward(y);
      });
  expect_same_bits(run(model, x), without);
  EXPECT_EQ(runs, 2);
  for (HookHandle& handle : handles) handle.remove();
  run(model, x);
  EXPECT_EQ(runs, 3);
}

// Earlier hooks are inside, later ones outside: neither runs twice as often.
TEST(CheckpointLayers, HooksAroundItAreRunOnce) {
  const at::Tensor x = at::linspace(-1, 1, 24).view({4, 6});
  int inside = 0, outside = 0;
  const auto count = [](int& runs) {
    return [&runs](const Forward& forward, const at::Tensor& y) {
      ++runs;
      return forward(y) * 2;
    };
  };
  Sequential model = net();
  wrap_forward(*model, "1", count(inside));
  checkpoint_layers(*model, {.names = {"1"}});
  wrap_forward(*model, "1", count(outside));
  const Found found = run(model, x);
  EXPECT_EQ(inside, 2);
  EXPECT_EQ(outside, 1);
  Sequential other = net();
  wrap_forward(*other, "1", [](const Forward& f, const at::Tensor& y) { return f(y) * 4; });
  const Found expected = run(other, x);
  EXPECT_TRUE(found.output.allclose(expected.output));
}

TEST(CheckpointLayers, AGraphKeepsItsLayers) {
  at::Tensor loss;
  const at::Tensor x = at::linspace(-1, 1, 24).view({4, 6}).requires_grad_();
  {
    Sequential model = net();
    checkpoint_layers(*model, {.names = {"0", "1", "2"}});
    loss = model->forward(x).square().sum();
  }
  loss.backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(CheckpointLayers, UnitsOfALanguageModel) {
  LmConfig config = lm_preset("tiny");
  config.vocab_size = 50;
  config.attention_dropout = 0.1;
  torch::manual_seed(1);
  TransformerLm lm(config);
  const at::Tensor ids = torch::randint(0, 50, {2, 17}, at::kLong);
  const Found without = run(lm, ids);
  EXPECT_THAT(checkpointed_layers(*lm, {.names = {"model.layers.*"}, .every = 2}),
              ElementsAre("model.layers.0", "model.layers.2"));
  checkpoint_layers<LmUnit::Signature>(*lm, {.names = {"model.layers.*"}, .every = 2});
  expect_same_bits(run(lm, ids), without);
}

TEST(CheckpointLayers, WhatCannotBeIsNamed) {
  Sequential model(Block(4), Block(4, true));
  const auto refusal = [&](const CheckpointedLayers& which) {
    return message_of<InvalidArgument>([&] { checkpoint_layers(*model, which); });
  };
  EXPECT_THAT(refusal({.names = {}}), HasSubstr("no layer is named"));
  EXPECT_THAT(refusal({.names = {"7"}}), HasSubstr("7"));
  EXPECT_THAT(refusal({.names = {"*.*.*"}}), HasSubstr("is called '*.*.*'"));
  EXPECT_THAT(refusal({.names = {"0"}, .every = 0}), HasSubstr("every is 0"));
  EXPECT_THAT(refusal({.names = {"0.linear"}}), HasSubstr("one layer of libtorch"));
  EXPECT_THAT(refusal({.names = {"*"}}), HasSubstr("'1.batch' has running statistics"));
  int runs = 0;
  wrap_forward(*model, "0.linear", [&](const Forward& forward, const at::Tensor& y) {
    ++runs;
    return forward(y);
  });
  model->forward(torch::ones({3, 4})).sum().backward();
  EXPECT_EQ(runs, 1) << "a refusal leaves the model as it was";
  freeze_child(*model, "1");
  EXPECT_EQ(checkpoint_layers(*model, {.names = {"*"}}).size(), 2u);
}

}  // namespace
}  // namespace lockstep::inline v0::checkpoint_layers_test
