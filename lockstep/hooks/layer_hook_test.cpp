#include "lockstep/hooks/layer_hook.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <sstream>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::hooks {
namespace {

// Counts its calls, and returns the layer's result.
struct Counting final : LayerHook {
  int calls = 0;
  at::Tensor forward(LayerCall& call) override {
    ++calls;
    return call.compute(call.input());
  }
};

struct Scaling final : LayerHook {
  explicit Scaling(double factor) : by(factor) {}
  double by;
  at::Tensor forward(LayerCall& call) override { return call.compute(call.input()) * by; }
};

// The results of a forward and a backward: output, the input's gradient, the parameters' gradients.
template <typename Layer>
std::vector<at::Tensor> results(Layer& layer, const at::Tensor& input) {
  layer->zero_grad();
  at::Tensor x = input.detach().clone();
  if (x.is_floating_point()) x.requires_grad_();
  const at::Tensor y = layer->forward(x);
  (y * y).sum().backward();
  std::vector<at::Tensor> found{y.detach()};
  if (x.is_floating_point()) found.push_back(x.grad());
  for (const at::Tensor& parameter : layer->parameters()) found.push_back(parameter.grad().clone());
  for (const at::Tensor& buffer : layer->buffers()) found.push_back(buffer.clone());
  return found;
}

template <typename Layer>
void expect_same_bits(const std::function<Layer()>& make, const at::Tensor& input,
                      const char* what) {
  torch::manual_seed(7);
  Layer plain = make();
  torch::manual_seed(7);
  Layer hooked = make();
  const auto hook = std::make_shared<Counting>();
  add_hook(*hooked, hook);
  for (int pass = 0; pass < 2; ++pass) {
    const auto expected = results(plain, input), found = results(hooked, input);
    ASSERT_EQ(found.size(), expected.size()) << what;
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(torch::equal(found[i], expected[i])) << what << ", tensor " << i;
  }
  EXPECT_EQ(hook->calls, 2) << what;
  hooked->eval();
  {
    const torch::NoGradGuard no_grad;
    hooked->forward(input);
  }
  EXPECT_EQ(hook->calls, 3) << what;
  EXPECT_TRUE(remove_hook(*hooked, hook.get()));
  EXPECT_FALSE(remove_hook(*hooked, hook.get()));
  hooked->forward(input);
  EXPECT_EQ(hook->calls, 3) << what;
  for (const at::Tensor& parameter : hooked->parameters()) EXPECT_FALSE(is_hooked(parameter));
}

TEST(LayerHook, EveryKindOfLayerKeepsItsBits) {
  namespace nn = torch::nn;
  torch::manual_seed(3);
  const auto random = [](std::vector<int64_t> shape) { return torch::randn(shape); };
  for (const bool bias : {true, false}) {
    const std::function<nn::Linear()> linear = [bias] {
      return nn::Linear(nn::LinearOptions(4, 3).bias(bias));
    };
    expect_same_bits(linear, random({4}), "Linear, a vector");
    expect_same_bits(linear, random({5, 4}), "Linear, a matrix");
    expect_same_bits(linear, random({2, 5, 4}), "Linear, three dimensions");
  }
  expect_same_bits<nn::Conv1d>([] { return nn::Conv1d(2, 3, 3); }, random({2, 2, 8}), "Conv1d");
  expect_same_bits<nn::Conv2d>([] { return nn::Conv2d(2, 3, 3); }, random({2, 2, 8, 8}), "Conv2d");
  expect_same_bits<nn::Conv2d>(
      [] { return nn::Conv2d(nn::Conv2dOptions(2, 3, 3).padding(torch::kSame)); },
      random({2, 2, 8, 8}), "Conv2d, padding by name");
  expect_same_bits<nn::Conv3d>([] { return nn::Conv3d(2, 3, 2); }, random({2, 2, 4, 4, 4}),
                               "Conv3d");
  expect_same_bits<nn::ConvTranspose1d>([] { return nn::ConvTranspose1d(2, 3, 3); },
                                        random({2, 2, 8}), "ConvTranspose1d");
  expect_same_bits<nn::ConvTranspose2d>([] { return nn::ConvTranspose2d(2, 3, 3); },
                                        random({2, 2, 6, 6}), "ConvTranspose2d");
  expect_same_bits<nn::ConvTranspose3d>([] { return nn::ConvTranspose3d(2, 3, 2); },
                                        random({2, 2, 4, 4, 4}), "ConvTranspose3d");
  expect_same_bits<nn::Embedding>([] { return nn::Embedding(9, 4); },
                                  torch::randint(9, {3, 5}, torch::kLong), "Embedding");
  expect_same_bits<nn::BatchNorm1d>([] { return nn::BatchNorm1d(4); }, random({6, 4}),
                                    "BatchNorm1d");
  expect_same_bits<nn::BatchNorm2d>(
      [] { return nn::BatchNorm2d(nn::BatchNorm2dOptions(4).track_running_stats(false)); },
      random({6, 4, 2, 2}), "BatchNorm2d without statistics");
  expect_same_bits<nn::BatchNorm3d>(
      [] {
        return nn::BatchNorm3d(nn::BatchNorm3dOptions(4).track_running_stats(false).affine(false));
      },
      random({6, 4, 2, 2, 2}), "BatchNorm3d without anything");
  expect_same_bits<nn::LayerNorm>([] { return nn::LayerNorm(nn::LayerNormOptions({4})); },
                                  random({6, 4}), "LayerNorm");
  expect_same_bits<nn::GroupNorm>([] { return nn::GroupNorm(2, 4); }, random({6, 4, 3}),
                                  "GroupNorm");
}

TEST(LayerHook, AutocastIsInside) {
  torch::manual_seed(5);
  torch::nn::Linear plain(8, 4), hooked(8, 4);
  hooked->weight.detach().copy_(plain->weight.detach());
  hooked->bias.detach().copy_(plain->bias.detach());
  add_hook(*hooked, std::make_shared<Counting>());
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (const auto& shape : {std::vector<int64_t>{5, 8}, {2, 5, 8}}) {
    const at::Tensor x = torch::randn(shape);
    const at::Tensor expected = plain(x), found = hooked(x);
    EXPECT_EQ(found.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(torch::equal(found, expected));
  }
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

// The next operation often works in place on a layer's output.
TEST(LayerHook, InPlaceAfterwards) {
  torch::manual_seed(6);
  for (const bool three : {false, true}) {
    torch::nn::Linear layer(4, 4);
    const at::Tensor w = layer->weight.detach().clone().requires_grad_();
    const at::Tensor b = layer->bias.detach().clone();
    add_hook(*layer, std::make_shared<Scaling>(3));
    const at::Tensor x = (three ? torch::randn({2, 3, 4}) : torch::randn({3, 4})).requires_grad_();
    layer->forward(x).relu_().sum().backward();
    const at::Tensor found = x.grad().clone(), weight = layer->weight.grad().clone();
    x.mutable_grad().reset();
    layer->zero_grad();
    (((x.matmul(w.t()) + b) * 3).relu()).sum().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), found)) << three;
    EXPECT_TRUE(torch::allclose(w.grad(), weight)) << three;

    // Values that backward needs and that were overwritten are detected.
    struct Sigmoid final : LayerHook {
      at::Tensor forward(LayerCall& call) override { return call.compute(call.input()).sigmoid(); }
    };
    torch::nn::Linear other(4, 4);
    add_hook(*other, std::make_shared<Sigmoid>());
    const at::Tensor y = other(x).mul_(2).sum();
    EXPECT_THROW(y.backward(), c10::Error) << three;
  }
}

TEST(LayerHook, TheLastAddedIsOutside) {
  torch::nn::Linear layer(2, 2);
  const at::Tensor x = torch::randn({3, 2}), plain = layer(x).detach();
  struct PlusOne final : LayerHook {
    at::Tensor forward(LayerCall& call) override { return call.compute(call.input()) + 1; }
  };
  add_hook(*layer, std::make_shared<Scaling>(2));
  add_hook(*layer, std::make_shared<PlusOne>());
  EXPECT_TRUE(torch::allclose(layer(x), plain * 2 + 1));
  EXPECT_EQ(hooks_of(*layer).size(), 2u);
}

TEST(LayerHook, OtherOperationsPassItBy) {
  torch::manual_seed(1);
  torch::nn::Linear layer(4, 3);
  const auto hook = std::make_shared<Counting>();
  add_hook(*layer, hook);
  const at::Tensor w = layer->weight.detach().clone();
  EXPECT_TRUE(torch::equal(layer->weight.matmul(layer->weight.t()), w.matmul(w.t()))) << "Gram";
  EXPECT_TRUE(torch::equal(layer->weight + 1, w + 1));
  EXPECT_TRUE(torch::equal(layer->weight.sum(), w.sum()));
  EXPECT_EQ(hook->calls, 0);
  torch::optim::SGD optimizer(layer->parameters(), 0.5);
  layer(torch::ones({1, 4})).sum().backward();
  optimizer.step();
  EXPECT_TRUE(torch::equal(layer->weight.detach(), w - 0.5));
  EXPECT_TRUE(is_hooked(layer->weight));
  EXPECT_EQ(hook->calls, 1);
}

// An embedding whose weight is also the output layer's weight.
TEST(LayerHook, TiedLayersAreHookedEachByItself) {
  torch::nn::Embedding words(6, 4);
  torch::nn::Linear out(torch::nn::LinearOptions(4, 6).bias(false));
  out->weight = words->weight;
  const at::Tensor weight = words->weight.detach().clone();
  const auto reading = std::make_shared<Counting>(), writing = std::make_shared<Counting>();
  add_hook(*words, reading);
  add_hook(*out, writing);
  const at::Tensor ids = torch::tensor({1, 2}, torch::kLong);
  EXPECT_TRUE(torch::equal(out(words(ids)), weight.index_select(0, ids).matmul(weight.t())));
  EXPECT_EQ(reading->calls, 1);
  EXPECT_EQ(writing->calls, 1);
  remove_hook(*words, reading.get());
  out(words(ids));
  EXPECT_EQ(reading->calls, 1);
  EXPECT_EQ(writing->calls, 2);
}

struct TwoImpl : torch::nn::Cloneable<TwoImpl> {
  TwoImpl() { TwoImpl::reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  at::Tensor forward(const at::Tensor& x) { return norm(first(x)); }
  torch::nn::Linear first = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
};
TORCH_MODULE(Two);

TEST(LayerHook, LivesThroughWhatModulesGoThrough) {
  Two net;
  const auto first = std::make_shared<Counting>(), norm = std::make_shared<Counting>();
  add_hook(*net->first, first);
  add_hook(*net->norm, norm);
  int expected = 0;
  const auto counts = [&](TwoImpl& model, at::ScalarType type, const char* what) {
    model.forward(torch::randn({5, 4}, type));
    ++expected;
    EXPECT_EQ(first->calls, expected) << what;
    EXPECT_EQ(norm->calls, expected) << what;
  };
  counts(*net, at::kFloat, "at first");
  net->to(at::kDouble);
  counts(*net, at::kDouble, "to()");
  auto copy = std::dynamic_pointer_cast<TwoImpl>(net->clone());
  counts(*copy, at::kDouble, "clone()");
  std::stringstream file;
  torch::save(net, file);
  Two loaded;
  torch::load(loaded, file);
  EXPECT_FALSE(is_hooked(loaded->first->weight)) << "hooks are not saved";
  file.seekg(0);
  torch::load(net, file);
  counts(*net, at::kDouble, "load()");
  set_data(net->first->weight, torch::randn({4, 4}, at::kDouble));
  counts(*net, at::kDouble, "set_data()");
  // A copy's hooks are removed without affecting the original's.
  remove_hook(*copy->first, first.get());
  EXPECT_TRUE(is_hooked(net->first->weight));
  counts(*net, at::kDouble, "a copy's hook that went");
}

TEST(LayerHook, RefusesWhatItCannotDo) {
  namespace nn = torch::nn;
  const auto hook = std::make_shared<Counting>();
  nn::Conv2d reflecting(nn::Conv2dOptions(1, 1, 3).padding(1).padding_mode(torch::kReflect));
  EXPECT_THROW(add_hook(*reflecting, hook), InvalidArgument);
  nn::LayerNorm bare(nn::LayerNormOptions({4}).elementwise_affine(false));
  EXPECT_THROW(add_hook(*bare, hook), InvalidArgument);
  nn::Bilinear bilinear(2, 2, 2);
  EXPECT_THROW(add_hook(*bilinear, hook), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::inline v0::hooks
