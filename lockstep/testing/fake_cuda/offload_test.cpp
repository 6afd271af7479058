// Activation checkpoints whose inputs are in pinned memory between forward and backward.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/device/memory.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

namespace lockstep::testing {
namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    wide = register_module("wide", torch::nn::Linear(width, 2 * width));
    narrow = register_module("narrow", torch::nn::Linear(2 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return narrow(wide(x).tanh()); }
  torch::nn::Linear wide{nullptr}, narrow{nullptr};
};
TORCH_MODULE(Block);

class Offload : public WithoutRaces {
 protected:
  const at::Device device_{at::kCUDA, 0};

  struct Step {
    std::vector<at::Tensor> gradients;
    int64_t peak = 0;  // bytes beyond what was there before
    int64_t stops = 0;
  };
  template <typename Model, typename Loss>
  Step step(Model& model, const Loss& loss) {
    for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
    loss().backward();  // gradients are there from now on, and what libtorch makes once
    for (const at::Tensor& parameter : model->parameters()) parameter.grad().zero_();
    device::reset_peak_memory(device_);
    const int64_t before = device::memory_use(device_)->in_use;
    Step result;
    const Counting counted;
    loss().backward();
    result.stops = counted.stops();
    result.peak = device::memory_use(device_)->peak - before;
    for (const at::Tensor& parameter : model->parameters())
      result.gradients.push_back(parameter.grad().cpu());
    return result;
  }
  static void expect_same(const Step& one, const Step& other) {
    ASSERT_EQ(one.gradients.size(), other.gradients.size());
    for (size_t i = 0; i < one.gradients.size(); ++i)
      EXPECT_TRUE(at::equal(one.gradients[i], other.gradients[i])) << i;
  }
};

TEST_F(Offload, HasTheSameBitsLessMemoryAndNoStop) {
  constexpr int kBlocks = 8;
  constexpr int64_t kRows = 2000, kWidth = 16;
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int i = 0; i < kBlocks; ++i) net->push_back(Block(kWidth));
  net->to(device_);
  const at::Tensor x = at::arange(kRows * kWidth, device_).view({kRows, kWidth}).sin();
  const auto loss = [&] { return net->forward(x).square().mean(); };

  const Step whole = step(net, loss);
  auto handles = checkpoint_layers(*net, {.names = {"*"}});
  const Step kept = step(net, loss);
  for (HookHandle& handle : handles) handle.remove();
  handles = checkpoint_layers(*net, {.names = {"*"}, .options = {.offload = true}});
  const Step offloaded = step(net, loss);

  expect_same(kept, whole);
  expect_same(offloaded, whole);
  EXPECT_EQ(offloaded.stops, 0);
  EXPECT_LT(kept.peak, whole.peak);
  // Of the inputs of blocks, all but the batch itself, two or three are there at a time.
  const int64_t input = kRows * kWidth * static_cast<int64_t>(sizeof(float));
  EXPECT_LE(offloaded.peak, kept.peak - (kBlocks - 4) * input);
}

TEST_F(Offload, OfALanguageModelsBlocks) {
  LmConfig config;
  config.vocab_size = 40;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.max_position_embeddings = 32;
  config.hidden_dropout = 0.1;
  torch::manual_seed(1);
  TransformerLm lm(config);
  lm->to(device_);
  const at::Tensor ids = (at::arange(64).view({4, 16}) % 40).to(device_);
  const auto loss = [&] {
    torch::manual_seed(3);
    return lm(ids, at::Tensor(), ids);
  };
  const Step whole = step(lm, loss);
  const auto handles = checkpoint_layers<LmUnit::Signature>(
      *lm, {.names = {"model.layers.*"}, .options = {.offload = true}});
  const Step offloaded = step(lm, loss);
  expect_same(offloaded, whole);
  EXPECT_EQ(offloaded.stops, 0);
}

// A graph that is kept runs twice; and a part that nobody runs backward is simply freed.
TEST_F(Offload, AsOftenAsTheGraphIsKept) {
  const at::Tensor w = at::arange(6, device_).sin().requires_grad_();
  const auto block = [&](const at::Tensor& x) {
    return checkpoint(
        CheckpointOptions{.offload = true}, [w](const at::Tensor& y) { return (y * w).tanh(); }, x);
  };
  const at::Tensor x = at::arange(6, device_).cos().requires_grad_();
  block(x * 2);
  const at::Tensor y = block(block(x * 2) + 1).sum();
  y.backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  y.backward();
  EXPECT_TRUE(at::equal((x.grad() - once).cpu(), once.cpu()));
}

}  // namespace
}  // namespace lockstep::testing
