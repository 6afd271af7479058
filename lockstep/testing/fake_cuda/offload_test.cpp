// Activation checkpoints whose inputs are in pinned memory between forward and backward.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/activations/checkpoint_layers.h"
#include "lockstep/activations/internal/offload.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/stream.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"

namespace lockstep::inline v0::testing {
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

// The copy to the host is behind what the stream is given after the part: the kept input is what the part had.
TEST_F(Offload, AnInputMayBeChangedRightAfterItsPart) {
  const at::Tensor w = at::arange(1000, device_).sin().requires_grad_();
  const at::Tensor x = at::arange(1000, device_).cos().requires_grad_();
  at::Tensor between = x * 2;
  const at::Tensor y = checkpoint(
      CheckpointOptions{.offload = true}, [w](const at::Tensor& z) { return (z * w).tanh(); },
      between);
  {
    const at::NoGradGuard no_grad;
    between.zero_();
  }
  y.sum().backward();
  const at::Tensor same = x.detach().clone().requires_grad_(), other = w.detach().clone();
  ((same * 2) * other).tanh().sum().backward();
  EXPECT_TRUE(at::equal(x.grad().cpu(), same.grad().cpu()));
}

// Of other strides, functions compute other bits, and view() throws.
TEST_F(Offload, AnInputComesBackAsItLay) {
  const at::Tensor x = at::arange(120, device_).view({2, 3, 4, 5}).cos().requires_grad_();
  const auto strides_of = [&](const at::Tensor& input) {
    std::vector<std::vector<int64_t>> seen;
    checkpoint(
        CheckpointOptions{.offload = true},
        [&seen](const at::Tensor& z) {
          seen.push_back(z.strides().vec());
          return z.tanh();
        },
        input)
        .sum()
        .backward();
    EXPECT_EQ(seen.size(), 2U);
    return seen;
  };
  const at::Tensor whole = x * 2;
  for (const at::Tensor& input :
       {whole, whole.contiguous(at::MemoryFormat::ChannelsLast), whole.transpose(1, 3)}) {
    EXPECT_TRUE(activations::internal::may_be_offloaded(input));
    const auto seen = strides_of(input * 1);
    EXPECT_EQ(seen.front(), seen.back());
  }
  // Not dense: they stay.
  for (const at::Tensor& view : {whole.slice(2, 1, 3), whole.select(0, 1).expand({2, 3, 4, 5})}) {
    EXPECT_FALSE(activations::internal::may_be_offloaded(view));
    const auto seen = strides_of(view);
    EXPECT_EQ(seen.front(), seen.back());
  }
}

// What is recorded on another stream is given out again only after the host has looked at events: a host that runs ahead would take
// new memory for each part.
TEST_F(Offload, TheMemoryIsTheCurrentStreamsAlone) {
  const at::Tensor x = at::arange(1000, device_).cos().requires_grad_();
  const c10::Stream own = device::current_stream(device_);
  int seen = 0;
  const auto look = [&](const at::Tensor& z) {
    const fake::Block* block = fake::machine().memory.find(z.unsafeGetTensorImpl()->data());
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(block->home, fake::slot_of(own));
    EXPECT_TRUE(block->recorded.empty());
    ++seen;
  };
  const auto part = [&](const at::Tensor& input) {
    return checkpoint(
        CheckpointOptions{.offload = true},
        [&](const at::Tensor& z) {
          look(z);
          return z.tanh();
        },
        input);
  };
  const at::Tensor first = x * 2, second = part(first), third = part(second);
  look(first);
  look(second);
  third.sum().backward();
  EXPECT_EQ(seen, 6);
}

TEST_F(Offload, APartThatThrowsKeepsItsInputUntilItsCopyIsOver) {
  const at::Tensor x = at::arange(1000, device_).cos().requires_grad_();
  const auto fail = [&] {
    checkpoint(
        CheckpointOptions{.offload = true},
        [](const at::Tensor& z) -> at::Tensor {
          if (z.defined()) throw InvalidArgument("this part");
          return z;
        },
        x * 2);
  };
  EXPECT_THROW(fail(), InvalidArgument);
  at::ones({1000}, device_).add_(1);  // has that memory
}

// A part that has run backward is not brought back by another one's backward.
TEST_F(Offload, NothingComesBackForAPartThatIsThrough) {
  const at::Tensor x = at::arange(1000, device_).cos().requires_grad_();
  x.mutable_grad() = at::zeros_like(x);
  const auto part = [&] {
    return checkpoint(
        CheckpointOptions{.offload = true}, [](const at::Tensor& z) { return z.tanh(); }, x * 2);
  };
  const at::Tensor first = part(), second = part();
  first.sum().backward({}, /*retain_graph=*/true);
  const int64_t before = device::memory_use(device_)->in_use;
  second.sum().backward({}, /*retain_graph=*/true);
  EXPECT_EQ(device::memory_use(device_)->in_use, before);
}

}  // namespace
}  // namespace lockstep::inline v0::testing
