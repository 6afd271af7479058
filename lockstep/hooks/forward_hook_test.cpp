#include "lockstep/hooks/forward_hook.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

namespace nn = torch::nn;

// A user's model without knowledge of hooks. Its stem is held by its type, its blocks are in a
// Sequential.
struct BlockImpl : nn::Cloneable<BlockImpl> {
  explicit BlockImpl(int64_t width) : channels(width) { BlockImpl::reset(); }
  void reset() override {
    conv1 =
        register_module("conv1", nn::Conv2d(nn::Conv2dOptions(channels, channels, 3).padding(1)));
    bn1 = register_module("bn1", nn::BatchNorm2d(channels));
    conv2 =
        register_module("conv2", nn::Conv2d(nn::Conv2dOptions(channels, channels, 3).padding(1)));
  }
  at::Tensor forward(const at::Tensor& x) { return at::relu(conv2(at::relu(bn1(conv1(x)))) + x); }
  int64_t channels;
  nn::Conv2d conv1 = nullptr, conv2 = nullptr;
  nn::BatchNorm2d bn1 = nullptr;
};
TORCH_MODULE(Block);

struct HeadImpl : nn::Module {
  explicit HeadImpl(int64_t width) : fc(register_module("fc", nn::Linear(width, 3))) {}
  at::Tensor forward(const at::Tensor& x) { return fc(x.mean({2, 3})); }
  nn::Linear fc;
};
TORCH_MODULE(Head);

// The one line that a head held by its type needs.
struct OpenHeadImpl : nn::Module, Hookable<at::Tensor(const at::Tensor&)> {
  explicit OpenHeadImpl(int64_t width) : fc(register_module("fc", nn::Linear(width, 3))) {}
  at::Tensor compute(const at::Tensor& x) override { return fc(x.mean({2, 3})); }
  nn::Linear fc;
};
TORCH_MODULE(OpenHead);

template <typename H>
struct NetImpl : nn::Module {
  NetImpl()
      : stem(register_module("stem", nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)))),
        relu(register_module("relu", nn::ReLU())),
        layer1(register_module("layer1", nn::Sequential(Block(4), nn::ReLU(), Block(4)))),
        head(register_module("head", H(4))) {}
  at::Tensor forward(const at::Tensor& images) { return head(layer1->forward(relu(stem(images)))); }
  nn::Conv2d stem;
  nn::ReLU relu;
  nn::Sequential layer1;
  H head;
};
using Net = NetImpl<Head>;
using OpenNet = NetImpl<OpenHead>;

at::Tensor images() {
  return torch::arange(2 * 36).view({2, 1, 6, 6}).to(at::kFloat).div(36).sub(1);
}

std::vector<std::string> names_of(const nn::Module& model) {
  std::vector<std::string> names = model.named_parameters().keys();
  const auto buffers = model.named_buffers().keys();
  names.insert(names.end(), buffers.begin(), buffers.end());
  return names;
}

TEST(ForwardHook, AForeignModelIsWrappedWhereverItsChildrenAre) {
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  net->eval();
  const auto names = names_of(*net);
  const at::Tensor x = images();
  const at::Tensor plain = net->forward(x);
  std::vector<std::string> called;
  std::vector<HookHandle> handles;
  for (const std::string path :
       {"stem", "layer1.0", "layer1.0.conv1", "layer1.0.bn1", "layer1.1", "head.fc"}) {
    handles.push_back(
        wrap_forward(*net, path, [&, path](const Forward& forward, const at::Tensor& input) {
          called.push_back(path);
          return forward(input);
        }));
  }
  EXPECT_TRUE(torch::equal(net->forward(x), plain));
  EXPECT_EQ(called, (std::vector<std::string>{"stem", "layer1.0", "layer1.0.conv1", "layer1.0.bn1",
                                              "layer1.1", "head.fc"}));
  EXPECT_EQ(names_of(*net), names);
  for (HookHandle& handle : handles) {
    handle.remove();
    handle.remove();
  }
  called.clear();
  EXPECT_TRUE(torch::equal(net->forward(x), plain));
  EXPECT_TRUE(called.empty());
}

TEST(ForwardHook, TrainsAsTheSameModelWrittenByHand) {
  torch::manual_seed(2);
  auto net = std::make_shared<Net>();
  wrap_forward(*net, "stem", [](const Forward& forward, const at::Tensor& input) {
    return forward(input * 2).clamp(-1, 1);
  });
  wrap_forward(*net, "layer1.2", [](const Forward& forward, const at::Tensor& input) {
    return forward(input) + 0.5 * input;
  });
  torch::manual_seed(2);
  auto same = std::make_shared<Net>();
  const auto by_hand = [&same](const at::Tensor& x) {
    at::Tensor y = same->relu(same->stem(x * 2).clamp(-1, 1));
    y = same->layer1->at<nn::ReLUImpl>(1).forward(same->layer1->at<BlockImpl>(0).forward(y));
    return same->head(same->layer1->at<BlockImpl>(2).forward(y) + 0.5 * y);
  };
  torch::optim::SGD one(net->parameters(), 0.1), other(same->parameters(), 0.1);
  const at::Tensor labels = torch::tensor({0, 2}, at::kLong);
  for (int step = 0; step < 3; ++step) {
    one.zero_grad();
    other.zero_grad();
    nn::functional::cross_entropy(net->forward(images()), labels).backward();
    nn::functional::cross_entropy(by_hand(images()), labels).backward();
    one.step();
    other.step();
  }
  const auto found = net->parameters(), expected = same->parameters();
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(torch::equal(found[i], expected[i])) << net->named_parameters().keys()[i];
}

TEST(ForwardHook, ReplacedByType) {
  for (const bool release : {false, true}) {
    torch::manual_seed(3);
    auto net = std::make_shared<Net>();
    net->eval();
    const at::Tensor x = images();
    const at::Tensor features = net->layer1->forward(net->relu(net->stem(x))).mean({2, 3});
    const at::Tensor old_weight = net->head->fc->weight;
    nn::Linear wider(4, 7);
    replace_child(*net, "head.fc", wider, {.release_memory = release});
    EXPECT_TRUE(torch::equal(net->forward(x), wider(features)));
    EXPECT_FALSE(wider->is_training());
    EXPECT_EQ(old_weight.numel(), release ? 0 : 12);
    const auto parameters = net->named_parameters();
    EXPECT_TRUE(parameters["head.fc.weight"].is_same(wider->weight));
    EXPECT_EQ(find_module(*net, "head.fc"), wider.ptr());
    net->forward(x).sum().backward();
    EXPECT_TRUE(wider->weight.grad().defined());
    EXPECT_FALSE(old_weight.grad().defined());
    // Again, at the replacement's place.
    wrap_forward(*net, "head.fc",
                 [](const Forward& forward, const at::Tensor& input) { return -forward(input); });
    const at::Tensor negative = net->forward(x);
    EXPECT_TRUE(torch::equal(negative, wider(features)));
    nn::Linear third(4, 2);
    replace_child(*net, "head.fc", third, {.release_memory = release});
    EXPECT_TRUE(torch::equal(net->forward(x), third(features)));
  }
}

TEST(ForwardHook, AReleasedLinearTakesAnyShape) {
  struct OverRowsImpl : nn::Module {
    OverRowsImpl() : fc(register_module("fc", nn::Linear(4, 3))) {}
    at::Tensor forward(const at::Tensor& x) { return fc(x); }
    nn::Linear fc;
  } net;
  nn::Linear other(4, 5);
  replace_child(net, "fc", other, {.release_memory = true});
  for (const auto& shape : {std::vector<int64_t>{4}, {2, 4}, {2, 3, 4}}) {
    const at::Tensor x = torch::randn(shape).requires_grad_();
    const at::Tensor y = net.forward(x);
    EXPECT_TRUE(torch::equal(y, other(x)));
    y.sum().backward();
    EXPECT_TRUE(x.grad().defined());
  }
}

TEST(ForwardHook, ReplacedInASequential) {
  auto net = std::make_shared<Net>();
  const auto children = net->layer1->named_children().keys();
  replace_child(*net, "layer1.1", nn::Sigmoid());
  replace_child(*net, "layer1.2", nn::Conv2d(4, 4, 1));
  EXPECT_EQ(net->layer1->named_children().keys(), children);
  const at::Tensor x = net->relu(net->stem(images()));
  const at::Tensor after = net->layer1->at<BlockImpl>(0).forward(x).sigmoid();
  EXPECT_TRUE(
      torch::equal(net->layer1->forward(x), net->layer1->at<nn::Conv2dImpl>(2).forward(after)));
  EXPECT_TRUE(net->named_parameters().contains("layer1.2.weight"));
  EXPECT_FALSE(net->named_parameters().contains("layer1.2.conv1.weight"));
}

TEST(ForwardHook, AWholeSequential) {
  auto net = std::make_shared<Net>();
  net->eval();
  const at::Tensor x = images(), plain = net->forward(x);
  const auto names = names_of(*net);
  std::vector<std::string> called;
  const auto noted = [&called](const std::string& name, double factor) {
    return [&called, name, factor](const Forward& forward, const at::Tensor& input) {
      called.push_back(name);
      return forward(input) * factor;
    };
  };
  wrap_forward(*net, "layer1.1", noted("child", 1));
  HookHandle whole = wrap_forward(*net, "layer1", noted("whole", 2));
  wrap_forward(*net, "layer1.2", noted("other child", 1));
  const at::Tensor before = net->relu(net->stem(x));
  const at::Tensor doubled = net->layer1->forward(before);
  nn::Sequential copy(std::dynamic_pointer_cast<nn::SequentialImpl>(net->layer1->clone()));
  EXPECT_TRUE(torch::equal(doubled, copy->forward(before) * 2));
  EXPECT_EQ(called,
            (std::vector<std::string>{"whole", "child", "other child", "child", "other child"}));
  EXPECT_EQ(names_of(*net), names);
  whole.remove();
  EXPECT_TRUE(torch::equal(net->forward(x), plain));
  called.clear();
  wrap_forward(*net, "layer1", noted("again", 1));
  replace_child(*net, "layer1.2", nn::Sigmoid());
  const auto children = net->layer1->named_children();
  const at::Tensor first = std::dynamic_pointer_cast<BlockImpl>(children["0"])->forward(before);
  EXPECT_TRUE(torch::equal(net->layer1->forward(before),
                           children["1"]->as<nn::ReLUImpl>()->forward(first).sigmoid()));
  EXPECT_EQ(called, (std::vector<std::string>{"again", "child"}));
  replace_child(*net, "layer1", nn::Conv2d(4, 4, 1));
  EXPECT_TRUE(net->named_parameters().contains("layer1.weight"));
  EXPECT_TRUE(
      torch::equal(net->forward(x),
                   net->head(find_module(*net, "layer1")->as<nn::Conv2dImpl>()->forward(before))));
}

TEST(ForwardHook, OneLineOpensAnythingElse) {
  auto net = std::make_shared<Net>();
  const auto hook = [](const Forward& forward, const at::Tensor& input) { return forward(input); };
  try {
    wrap_forward(*net, "head", hook);
    FAIL() << "Head is held by its type";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("lockstep::Hookable"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(replace_child(*net, "relu", nn::Sigmoid()), InvalidArgument);
  EXPECT_THROW(wrap_forward<int(int)>(*net, "head", nullptr), InvalidArgument);
  auto open = std::make_shared<OpenNet>();
  HookHandle handle = wrap_forward(
      *open, "head", [](const Forward& forward, const at::Tensor& x) { return forward(x) * 2; });
  open->eval();
  const at::Tensor once = open->forward(images());
  handle.remove();
  EXPECT_TRUE(torch::equal(open->forward(images()) * 2, once));
  replace_child(*open, "head", nn::Flatten());
  EXPECT_EQ(open->forward(images()).sizes(), (std::vector<int64_t>{2, 144}));
  try {
    wrap_forward(*net, "layer1.0.conv3", hook);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'layer1.0.conv"), std::string::npos)
        << error.what();
  }
}

TEST(ForwardHook, OtherSignatures) {
  struct Pair : nn::Module, Hookable<std::pair<int, int>(int, std::string&)> {
    std::pair<int, int> compute(int a, std::string& text) override {
      text += "!";
      return {a, a + 1};
    }
  };
  struct Holder : nn::Module {
    std::shared_ptr<Pair> pair = register_module("pair", std::make_shared<Pair>());
  } holder;
  std::string text = "a";
  wrap_forward<std::pair<int, int>(int, std::string&)>(
      holder, "pair", [](const auto& forward, int a, std::string& t) {
        auto [x, y] = forward(10 * a, t);
        return std::pair(y, x);
      });
  EXPECT_EQ(holder.pair->forward(2, text), std::pair(21, 20));
  EXPECT_EQ(text, "a!");
}

TEST(ForwardHook, FrozenStaysFrozenInTraining) {
  torch::manual_seed(4);
  auto net = std::make_shared<Net>();
  net->forward(images());
  freeze_child(*net, "layer1.0");
  freeze_child(*net, "layer1.0");
  net->train();
  std::vector<at::Tensor> before;
  for (const auto& item : net->layer1->at<BlockImpl>(0).named_parameters())
    before.push_back(item.value().detach().clone());
  const BlockImpl& frozen = net->layer1->at<BlockImpl>(0);
  const BlockImpl& other = net->layer1->at<BlockImpl>(2);
  const at::Tensor mean = frozen.bn1->running_mean.clone(),
                   others = other.bn1->running_mean.clone();
  torch::optim::SGD optimizer(net->parameters(), 0.5);
  net->forward(images()).square().sum().backward();
  optimizer.step();
  EXPECT_TRUE(torch::equal(frozen.bn1->running_mean, mean));
  EXPECT_FALSE(torch::equal(other.bn1->running_mean, others));
  const auto after = net->layer1->at<BlockImpl>(0).parameters();
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_FALSE(after[i].grad().defined());
    EXPECT_TRUE(torch::equal(after[i], before[i]));
  }
  EXPECT_TRUE(net->stem->weight.grad().defined()) << "gradients pass through what is frozen";
}

TEST(ForwardHook, CopiesHaveTheHooks) {
  nn::Sequential net(Block(2), nn::ReLU(), nn::Linear(6, 2));
  int calls = 0;
  const auto count = [&calls](const Forward& forward, const at::Tensor& input) {
    ++calls;
    return forward(input);
  };
  for (const char* path : {"0", "0.conv1", "1", "2"}) wrap_forward(*net, path, count);
  const at::Tensor x = torch::randn({1, 2, 6, 6});
  const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
  net->eval();
  copy->eval();
  const at::Tensor expected = net->forward(x);
  EXPECT_EQ(calls, 4);
  EXPECT_TRUE(torch::equal(copy->forward(x), expected));
  EXPECT_EQ(calls, 8);
  EXPECT_EQ(names_of(*copy), names_of(*net));
  // The copy's parameters are its own, and the registered ones are those that it computes with.
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : copy->parameters()) parameter.zero_();
  EXPECT_TRUE(torch::equal(net->forward(x), expected));
  EXPECT_TRUE(torch::equal(copy->forward(x), torch::zeros_like(expected)));
}

// Linear held by its type, called with any number of dimensions.
struct OneImpl : nn::Cloneable<OneImpl> {
  OneImpl() { OneImpl::reset(); }
  void reset() override { fc = register_module("fc", nn::Linear(4, 4)); }
  at::Tensor forward(const at::Tensor& x) { return fc(x); }
  nn::Linear fc = nullptr;
};
TORCH_MODULE(One);

TEST(ForwardHook, AReplacedLayerIsNeverComputed) {
  One net;
  nn::Linear other(7, 2);
  replace_child(*net, "fc", other);
  EXPECT_EQ(net->forward(torch::randn({2, 3, 7})).size(2), 2);
  net->to(at::kDouble);
  EXPECT_EQ(net->forward(torch::randn({2, 3, 7}, at::kDouble)).scalar_type(), at::kDouble);
}

TEST(ForwardHook, ComputesWhenItIsCalled) {
  torch::manual_seed(8);
  One net;
  const at::Tensor w = net->fc->weight.detach().clone(), b = net->fc->bias.detach().clone();
  wrap_forward(*net, "fc", [](const Forward& forward, const at::Tensor& input) {
    input.clamp_(-0.5, 0.5);
    return forward(input);
  });
  for (const auto& shape : {std::vector<int64_t>{3, 4}, {2, 3, 4}}) {
    const torch::NoGradGuard no_grad;
    const at::Tensor x = torch::randn(shape), clamped = x.clamp(-0.5, 0.5);
    EXPECT_TRUE(torch::allclose(net->forward(x), clamped.matmul(w.t()) + b));
  }
}

// Low-rank adaptation (Hu et al., arXiv:2106.09685): the replacement calls the module that it
// replaces.
struct AdapterImpl : nn::Module {
  explicit AdapterImpl(nn::Linear layer) : base(register_module("base", std::move(layer))) {
    down = register_parameter("down", torch::full({4, 1}, 0.1));
    up = register_parameter("up", torch::full({1, 4}, 0.2));
  }
  at::Tensor forward(const at::Tensor& x) { return base(x) + x.matmul(down).matmul(up); }
  nn::Linear base;
  at::Tensor down, up;
};
TORCH_MODULE(Adapter);

TEST(ForwardHook, AnAdapterAroundTheChild) {
  for (const bool release : {false, true}) {
    One net;
    const at::Tensor x = torch::randn({2, 3, 4}), plain = net->forward(x).detach();
    Adapter adapter(net->fc);
    replace_child(*net, "fc", adapter, {.release_memory = release});
    const at::Tensor expected = plain + x.matmul(adapter->down).matmul(adapter->up);
    EXPECT_TRUE(torch::allclose(net->forward(x), expected));
    EXPECT_TRUE(torch::allclose(net->forward(x[0]), expected[0]));
    EXPECT_TRUE(net->named_parameters().contains("fc.base.weight"));
    wrap_forward(*net, "fc.base", [](const Forward& forward, const at::Tensor& input) {
      return forward(input) * 2;
    });
    EXPECT_TRUE(torch::allclose(net->forward(x), expected + plain));
  }
}

struct TiedImpl : nn::Module {
  TiedImpl() {
    words = register_module("words", nn::Embedding(6, 4));
    body = register_module("body", nn::Linear(4, 4));
    again = register_module("again", body);
    out = register_module("out", nn::Linear(nn::LinearOptions(4, 6).bias(false)));
    out->weight = words->weight;
  }
  at::Tensor forward(const at::Tensor& ids) { return out(again(body(words(ids)))); }
  nn::Embedding words = nullptr;
  nn::Linear body = nullptr, again = nullptr, out = nullptr;
};
TORCH_MODULE(Tied);

TEST(ForwardHook, ASequentialAroundTheChild) {
  One net;
  const at::Tensor x = torch::randn({2, 3, 4}), plain = net->forward(x).detach();
  replace_child(*net, "fc", nn::Sequential(net->fc, nn::ReLU()), {.release_memory = true});
  EXPECT_TRUE(torch::equal(net->forward(x), plain.relu()));
  One other;
  EXPECT_THROW(replace_child(*other, "fc", nn::AnyModule(Adapter(other->fc))), InvalidArgument);
}

TEST(ForwardHook, OfSharedTensorsOnlyTheOwnGo) {
  Tied net;
  const at::Tensor ids = torch::tensor({1, 2}, at::kLong), before = net->words->weight.clone();
  nn::Linear out(4, 3);
  replace_child(*net, "out", out, {.release_memory = true});
  EXPECT_TRUE(torch::equal(net->words->weight, before));
  EXPECT_EQ(net->forward(ids).size(1), 3);
  // A module under two names is replaced under both.
  nn::Linear body(4, 4);
  replace_child(*net, "again", body);
  EXPECT_EQ(find_module(*net, "body"), body.ptr());
  EXPECT_EQ(find_module(*net, "again"), body.ptr());
  struct Pair : nn::Module {
    Pair() { other->weight = one->weight; }
    nn::Linear one = register_module("one", nn::Linear(4, 4));
    nn::Linear other = register_module("other", nn::Linear(4, 4));
  } pair;
  EXPECT_THROW(
      wrap_forward(pair, "one", [](const Forward& f, const at::Tensor& x) { return f(x); }),
      InvalidArgument);
}

TEST(ForwardHook, WhatIsKeptDoesNotChange) {
  for (const auto& shape : {std::vector<int64_t>{3, 4}, {2, 3, 4}}) {
    One net;
    at::Tensor kept;
    HookHandle handle =
        wrap_forward(*net, "fc", [&kept](const Forward& forward, const at::Tensor& input) {
          kept = forward(input);
          return kept;
        });
    const at::Tensor x = torch::randn(shape);
    const at::Tensor y = net->forward(x);
    if (shape.size() > 2) {
      const at::Tensor before = kept.detach().clone();
      y.relu_();
      EXPECT_TRUE(torch::equal(kept, before));
    }
    handle.remove();
    nn::Identity same;
    replace_child(*net, "fc", same);
    const at::Tensor before = x.clone();
    if (shape.size() > 2) {
      net->forward(x).relu_();
      EXPECT_TRUE(torch::equal(x, before));
    }
  }
}

TEST(ForwardHook, InferenceModeLeavesParametersTrainable) {
  One net;
  {
    const c10::InferenceMode mode;
    HookHandle handle = wrap_forward(
        *net, "fc", [](const Forward& forward, const at::Tensor& x) { return forward(x); });
    net->forward(torch::randn({2, 4}));
    handle.remove();
  }
  EXPECT_FALSE(net->fc->weight.is_inference());
  net->forward(torch::randn({2, 4})).sum().backward();
  EXPECT_TRUE(net->fc->weight.grad().defined());
}

TEST(ForwardHook, CopiesOfWhatWasReplaced) {
  One net;
  nn::Linear other(4, 4);
  replace_child(*net, "fc", other);
  const at::Tensor x = torch::randn({2, 4});
  const auto copy = std::dynamic_pointer_cast<OneImpl>(net->clone());
  EXPECT_TRUE(torch::equal(copy->forward(x), other(x)));
  replace_child(*net, "fc", nn::Sequential(nn::Linear(4, 3), nn::ReLU()));
  EXPECT_EQ(net->forward(x).size(1), 3);
  EXPECT_TRUE(net->named_parameters().contains("fc.0.weight"));
  EXPECT_THROW(net->clone(), c10::Error);
}

TEST(ForwardHook, CopiesFollowTrainAndEval) {
  nn::Sequential net(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Dropout(0.5));
  wrap_forward(*net, "2", [](const Forward& forward, const at::Tensor& x) { return forward(x); });
  const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(net->clone());
  copy->eval();
  const at::Tensor x = torch::randn({5, 4});
  EXPECT_TRUE(torch::equal(copy->forward(x), copy->forward(x)));
  copy->train();
  EXPECT_FALSE(torch::equal(copy->forward(x), copy->forward(x)));
}

TEST(ForwardHook, ReplacedInsideASequentialByASequential) {
  nn::Sequential net(nn::Linear(4, 4), nn::ReLU());
  replace_child(*net, "1", nn::Sequential(nn::Linear(4, 2), nn::Dropout(0.5)));
  net->eval();
  const at::Tensor x = torch::randn({5, 4});
  EXPECT_EQ(net->forward(x).size(1), 2);
  EXPECT_TRUE(torch::equal(net->forward(x), net->forward(x)));
  EXPECT_TRUE(net->named_parameters().contains("1.0.weight"));
}

TEST(ForwardHook, AReleasedEmbedding) {
  struct Words : nn::Module {
    nn::Embedding words =
        register_module("words", nn::Embedding(nn::EmbeddingOptions(6, 4).padding_idx(1)));
    at::Tensor forward(const at::Tensor& ids) { return words(ids); }
  } net;
  nn::Embedding larger(9, 4);
  replace_child(net, "words", larger, {.release_memory = true});
  const at::Tensor ids = torch::tensor({8, 1}, at::kLong);
  EXPECT_TRUE(torch::equal(net.forward(ids), larger(ids)));
  EXPECT_EQ(net.words->weight.nbytes(), 0u);
}

TEST(ForwardHook, ClassesOfOnesOwnAreRefused) {
  struct NoisyImpl : nn::LinearImpl {
    NoisyImpl() : nn::LinearImpl(4, 4) {}
    at::Tensor forward(const at::Tensor& x) { return nn::functional::linear(x, weight + 1, bias); }
  };
  struct Holder : nn::Module {
    std::shared_ptr<NoisyImpl> fc = register_module("fc", std::make_shared<NoisyImpl>());
    nn::InstanceNorm2d norm = register_module(
        "norm", nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).track_running_stats(true)));
  } net;
  EXPECT_THROW(wrap_forward(net, "fc", [](const Forward& f, const at::Tensor& x) { return f(x); }),
               InvalidArgument);
  EXPECT_THROW(replace_child(net, "fc", nn::Linear(4, 4)), InvalidArgument);
  EXPECT_THROW(freeze_child(net, "norm"), InvalidArgument);
}

TEST(ForwardHook, WhatAHookThrowsTheModelThrows) {
  auto net = std::make_shared<Net>();
  const at::Tensor plain = (net->eval(), net->forward(images()));
  HookHandle handle = wrap_forward(
      *net, "head.fc",
      [](const Forward&, const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); });
  EXPECT_THROW(net->forward(images()), std::runtime_error);
  handle.remove();
  EXPECT_TRUE(torch::equal(net->forward(images()), plain));
}

}  // namespace
}  // namespace lockstep::inline v0
