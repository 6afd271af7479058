// Training steps as graphs, on a fake device: the same bits as eagerly, one launch per step, no
// wait of the host, no race; and the steps that cannot be captured.
#include "lockstep/graph/graphed_step.h"

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/event.h"
#include "lockstep/device/stream.h"
#include "lockstep/model/bert.h"
#include "lockstep/model/simple_cnn.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/gradient_norm.h"
#include "lockstep/optim/lamb.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

namespace lockstep::inline v0::testing {
namespace {

class GraphedSteps : public WithoutRaces {
 protected:
  void SetUp() override {
    WithoutRaces::SetUp();
    if (const std::string why = device::why_no_graphs(kDevice); !why.empty()) GTEST_SKIP() << why;
  }
  static inline const at::Device kDevice{at::kCUDA, 0};
};

constexpr int kSteps = 8;
// Learning rates are float32 in a graph and float64 in the eager kernel's arguments; powers of two
// are exact in both.
constexpr double kRate = 1.0 / 1024;

using Batch = std::vector<at::Tensor>;
using Loss = std::function<at::Tensor(const Batch&)>;

// The results of training.
struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<double> losses;
  int graphs = 0;
};

void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

// A model, the loss of a batch and the batches, the same in every call.
struct Task {
  std::shared_ptr<torch::nn::Module> model;
  Loss loss;
  std::vector<Batch> batches;  // on the host
};
using MakeTask = std::function<Task()>;

Task make_mlp() {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(6, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 3));
  Task task{model.ptr(),
            [model](const Batch& batch) mutable {
              return torch::nn::functional::cross_entropy(model->forward(batch[0]), batch[1]);
            },
            {}};
  for (int i = 0; i < kSteps; ++i)
    task.batches.push_back({torch::randn({4, 6}), torch::randint(3, {4})});
  return task;
}

Task make_cnn() {
  torch::manual_seed(4);
  SimpleCnn model;
  Task task{model.ptr(),
            [model](const Batch& batch) mutable {
              return torch::nn::functional::nll_loss(model->forward(batch[0]), batch[1]);
            },
            {}};
  for (int i = 0; i < kSteps; ++i)
    task.batches.push_back({torch::randn({2, 1, 28, 28}), torch::randint(10, {2})});
  return task;
}

// The step of a training loop: clipping, a skipped step if the norm is not finite, AdamW.
template <typename Optimizer>
at::Tensor clipped_step(Optimizer& optimizer, const Loss& loss_of, const Batch& batch) {
  optimizer.zero_grad();
  at::Tensor loss = loss_of(batch);
  loss.backward();
  optimizer.step({.max_norm = 1.0, .on_non_finite = optim::NonFinite::kSkip});
  return loss;
}

Trained train(const MakeTask& make, at::Device device, bool graphed) {
  const Task task = make();
  task.model->to(device);
  optim::FusedAdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(kRate));
  torch::manual_seed(11);
  const auto step = [&](const Batch& batch) { return clipped_step(optimizer, task.loss, batch); };
  GraphedStep replayed({.device = device}, step);
  Trained result;
  for (int i = 0; i < kSteps; ++i) {
    set_rate(optimizer, i < 6 ? kRate : kRate / 2);
    Batch batch;
    for (const at::Tensor& tensor : task.batches[static_cast<size_t>(i)])
      batch.push_back(tensor.to(device));
    Counting counted;
    const at::Tensor loss = graphed ? replayed(batch) : step(batch);
    if (graphed && i > 3) {
      const FakeCudaCounts counts = counted.counts();
      EXPECT_EQ(counts.stops(), 0) << counts.text();
      EXPECT_EQ(counts.replays, 1);
      // The batch, the learning rate with the step's number, and the graph.
      EXPECT_EQ(counts.operations, static_cast<int64_t>(batch.size()) + 2) << counts.text();
      EXPECT_GT(counts.replayed, 10) << counts.text();
    }
    result.losses.push_back(loss.item<double>());
  }
  for (const at::Tensor& p : task.model->parameters())
    result.parameters.push_back(p.detach().cpu());
  result.graphs = replayed.captured();
  return result;
}

void expect_same(const Trained& graphed, const Trained& eager) {
  EXPECT_EQ(graphed.losses, eager.losses);
  ASSERT_EQ(graphed.parameters.size(), eager.parameters.size());
  for (size_t i = 0; i < eager.parameters.size(); ++i)
    EXPECT_TRUE(at::equal(graphed.parameters[i], eager.parameters[i])) << "parameter " << i;
}

void expect_as_eagerly(const MakeTask& make, at::Device device) {
  const Trained eager = train(make, device, false);
  const Trained graphed = train(make, device, true);
  EXPECT_EQ(graphed.graphs, 1);
  expect_same(graphed, eager);
}

TEST_F(GraphedSteps, AnMlpTrainsAsEagerly) {
  expect_as_eagerly(make_mlp, kDevice);
}

TEST_F(GraphedSteps, ACnnWithDropoutTrainsAsEagerly) {
  expect_as_eagerly(make_cnn, kDevice);
}

Task make_bert() {
  torch::manual_seed(5);
  BertConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.intermediate_size = 64;
  config.max_position_embeddings = 16;
  BertClassifier model(config);
  Task task{model.ptr(),
            [model](const Batch& batch) mutable {
              return torch::nn::functional::cross_entropy(model->forward(batch[0], batch[1]),
                                                          batch[2]);
            },
            {}};
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor lengths = torch::randint(3, 9, {3, 1});
    task.batches.push_back({torch::randint(1, 50, {3, 8}),
                            torch::arange(8).lt(lengths).to(torch::kLong), torch::randint(2, {3})});
  }
  return task;
}

Task make_lm() {
  torch::manual_seed(6);
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 44;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  TransformerLm model(config);
  Task task{model.ptr(),
            [model](const Batch& batch) mutable { return model->loss(batch[0], batch[1]); },
            {}};
  for (int i = 0; i < kSteps; ++i)
    task.batches.push_back({torch::randint(50, {2, 8}), torch::randint(50, {2, 8})});
  return task;
}

TEST_F(GraphedSteps, BertWithDropoutTrainsAsEagerly) {
  expect_as_eagerly(make_bert, kDevice);
}

TEST_F(GraphedSteps, ALanguageModelTrainsAsEagerly) {
  expect_as_eagerly(make_lm, kDevice);
}

// An infinity in one batch: the device skips the step, and the step counts follow.
TEST_F(GraphedSteps, TheScalerLeavesStepsOutInReplays) {
  const auto run = [](bool graphed) {
    const Task task = make_mlp();
    task.model->to(kDevice);
    optim::FusedAdam optimizer(task.model->parameters(), torch::optim::AdamOptions(kRate));
    amp::GradScaler scaler({.init_scale = 8, .growth_interval = 2});
    const auto step = [&](const Batch& batch) {
      optimizer.zero_grad();
      const at::Tensor loss = task.loss(batch);
      scaler.scale(loss).backward();
      scaler.unscale(optimizer);
      optim::clip_grad_norm_(task.model->parameters(), 1.0);
      scaler.step(optimizer);
      scaler.update();
      return loss;
    };
    GraphedStep replayed({.device = kDevice}, step);
    std::vector<double> scales;
    for (int i = 0; i < kSteps; ++i) {
      Batch batch;
      for (const at::Tensor& tensor : task.batches[static_cast<size_t>(i)])
        batch.push_back(tensor.to(kDevice));
      if (i == 1 || i == 5) batch[0].select(0, 1).fill_(std::numeric_limits<float>::infinity());
      graphed ? replayed(batch) : step(batch);
      // As a checkpoint does, between replays.
      if (i == 6) optimizer.settle();
      scales.push_back(scaler.current_scale());
    }
    EXPECT_EQ(replayed.captured(), graphed ? 1 : 0);
    optimizer.settle();
    for (const auto& [key, state] : optimizer.state()) {
      EXPECT_EQ(static_cast<const torch::optim::AdamParamState&>(*state).step(), kSteps - 2);
    }
    Trained result;
    result.losses = scales;
    for (const at::Tensor& p : task.model->parameters())
      result.parameters.push_back(p.detach().cpu());
    return result;
  };
  expect_same(run(true), run(false));
}

TEST_F(GraphedSteps, SgdWithMomentumAndLoadedStateGoesOn) {
  const auto run = [](bool graphed) {
    const Task task = make_mlp();
    task.model->to(kDevice);
    optim::FusedSGD optimizer(task.model->parameters(),
                              torch::optim::SGDOptions(1.0 / 16).momentum(0.5));
    const auto step = [&](const Batch& batch) {
      optimizer.zero_grad();
      at::Tensor loss = task.loss(batch);
      loss.backward();
      optimizer.step();
      return loss;
    };
    GraphedStep replayed({.device = kDevice, .warm_up = 2}, step);
    for (int i = 0; i < kSteps; ++i) {
      Batch batch;
      for (const at::Tensor& tensor : task.batches[static_cast<size_t>(i)])
        batch.push_back(tensor.to(kDevice));
      graphed ? replayed(batch) : step(batch);
      if (i != 5) continue;
      // Replaces the tensors in the state, as load() does.
      for (auto& [key, state] : optimizer.state()) {
        at::Tensor& momentum = static_cast<torch::optim::SGDParamState&>(*state).momentum_buffer();
        momentum = momentum.mul(0.5);
      }
    }
    EXPECT_EQ(replayed.captured(), graphed ? 1 : 0);
    Trained result;
    for (const at::Tensor& p : task.model->parameters())
      result.parameters.push_back(p.detach().cpu());
    return result;
  };
  expect_same(run(true), run(false));
}

// A square of the batch and of the learned parameter.
struct Square {
  at::Tensor weight = torch::ones({3}).to(at::Device(at::kCUDA, 0)).requires_grad_();
  optim::FusedSGD optimizer{{weight}, torch::optim::SGDOptions(1.0 / 8)};

  at::Tensor operator()(const at::Tensor& x) {
    optimizer.zero_grad();
    at::Tensor loss = (weight * x).square().sum();
    loss.backward();
    optimizer.step();
    return loss;
  }
};

at::Tensor numbers(int64_t rows, double first) {
  return torch::arange(rows * 3).view({rows, 3}).div(16).add(first).to(at::Device(at::kCUDA, 0));
}

TEST_F(GraphedSteps, OtherShapesRunEagerlyAndMoreGraphsAreAnOption) {
  for (const int graphs : {1, 2}) {
    Square eager, graphed;
    GraphedStep step({.device = kDevice, .graphs = graphs}, std::ref(graphed));
    for (int i = 0; i < 14; ++i) {
      const at::Tensor x = numbers(i % 3 == 2 ? 1 : 2, i / 32.0);
      const at::Tensor loss = step(x);
      EXPECT_EQ(loss.item<float>(), eager(x).item<float>()) << i;
    }
    EXPECT_EQ(step.captured(), graphs);
    EXPECT_TRUE(at::equal(graphed.weight, eager.weight));
  }
}

// Values that the host reads from a batch stay as at the capture: a graph is specific to them.
TEST_F(GraphedSteps, ValuesOnTheHostAndNumbersChooseTheGraph) {
  Square square;
  GraphedStep step({.device = kDevice, .warm_up = 2},
                   [&](const at::Tensor& x, const at::Tensor& rows, int times) {
                     return square(x.narrow(0, 0, rows.item<int64_t>()) * times);
                   });
  const at::Tensor x = numbers(4, 0.5);
  for (int i = 0; i < 4; ++i) step(x, torch::tensor(2), 1);
  ASSERT_EQ(step.captured(), 1);
  Counting counted;
  step(x, torch::tensor(2), 1);
  EXPECT_EQ(counted.counts().replays, 1);
  step(x, torch::tensor(3), 1);
  step(x, torch::tensor(2), 2);
  EXPECT_EQ(counted.counts().replays, 1);
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

// The line states cause and place, nothing has happened, and the step may be run eagerly.
TEST_F(GraphedSteps, WhatCannotBeCapturedIsNamed) {
  const c10::Stream side = device::side_stream(kDevice);
  const at::Tensor host = torch::ones({3});
  at::Tensor kept = torch::zeros({3}).to(kDevice);
  struct Wrong {
    std::string words;
    std::function<void(const at::Tensor& loss)> does;
  };
  const std::vector<Wrong> wrongs{
      {"aten::_local_scalar_dense", [](const at::Tensor& loss) { loss.item<float>(); }},
      {"copy to device", [&](const at::Tensor&) { kept.add_(host.to(kDevice)); }},
      {"cudaErrorStreamCaptureUnjoined",
       [&](const at::Tensor&) {
         device::order(device::current_stream(kDevice), side);
         const c10::StreamGuard on(side);
         kept.add_(1);
       }},
      {"cudaEventQuery",
       [](const at::Tensor&) {
         device::Event event(kDevice);
         event.record();
         static_cast<void>(event.reached());
       }},
      {"device", [](const at::Tensor&) { torch::cuda::synchronize(0); }},
  };
  for (const Wrong& wrong : wrongs) {
    Square square, eager;
    bool captures = false;
    GraphedStep step({.device = kDevice, .warm_up = 2}, [&](const at::Tensor& x) {
      at::Tensor loss = square(x);
      if (captures) wrong.does(loss);
      return loss;
    });
    for (int i = 0; i < 2; ++i) step(numbers(2, i)), eager(numbers(2, i));
    captures = true;
    const std::string said = message_of([&] { step(numbers(2, 2)); });
    EXPECT_NE(said.find("GraphedStep"), std::string::npos) << said;
    EXPECT_NE(said.find(wrong.words), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
    EXPECT_EQ(step.captured(), 0);
    EXPECT_TRUE(at::equal(square.weight, eager.weight)) << "the capture has done something";
    captures = false;
    step(numbers(2, 2)), eager(numbers(2, 2));
    EXPECT_EQ(step.captured(), 1);
    EXPECT_TRUE(at::equal(square.weight, eager.weight));
  }
}

TEST_F(GraphedSteps, OrTheStepsGoOnEagerly) {
  const auto run = [](bool graphed) {
    const Task task = make_cnn();
    task.model->to(kDevice);
    optim::FusedAdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(kRate));
    torch::manual_seed(12);
    Trained result;
    const auto step = [&](const Batch& batch) {
      const at::Tensor loss = clipped_step(optimizer, task.loss, batch);
      result.losses.push_back(loss.item<double>());
      return loss;
    };
    GraphedStep tried({.device = kDevice, .uncapturable = Uncapturable::kEager}, step);
    for (int i = 0; i < 6; ++i) {
      Batch batch;
      for (const at::Tensor& tensor : task.batches[static_cast<size_t>(i)])
        batch.push_back(tensor.to(kDevice));
      graphed ? tried(batch) : step(batch);
    }
    EXPECT_EQ(tried.captured(), 0);
    EXPECT_EQ(tried.why_eager().empty(), !graphed);
    for (const at::Tensor& p : task.model->parameters())
      result.parameters.push_back(p.detach().cpu());
    return result;
  };
  expect_same(run(true), run(false));
}

TEST_F(GraphedSteps, OptimizersOfTheHostsNumbersAreRefused) {
  const at::Tensor weight = torch::ones({3}).to(kDevice).requires_grad_();
  optim::Lamb optimizer({weight}, torch::optim::AdamWOptions(0.01));
  GraphedStep step({.device = kDevice}, [&](const at::Tensor& x) {
    optimizer.zero_grad();
    at::Tensor loss = (weight * x).sum();
    loss.backward();
    optimizer.step();
    return loss;
  });
  const at::Tensor x = numbers(2, 1);
  for (int i = 0; i < 3; ++i) step(x);
  const std::string said = message_of([&] { step(x); });
  EXPECT_NE(said.find("FusedAdamW"), std::string::npos) << said;
}

// They count steps and have their learning rate on the host.
TEST_F(GraphedSteps, TorchsOwnOptimizersAreRefused) {
  const at::Tensor weight = torch::ones({3}).to(kDevice).requires_grad_();
  torch::optim::SGD optimizer({weight}, torch::optim::SGDOptions(1.0 / 8));
  const auto take = [&](const at::Tensor& x) {
    optimizer.zero_grad();
    at::Tensor loss = (weight * x).sum();
    loss.backward();
    optimizer.step();
    return loss;
  };
  const at::Tensor x = numbers(2, 1);
  GraphedStep step({.device = kDevice}, take);
  for (int i = 0; i < 3; ++i) step(x);
  const std::string said = message_of([&] { step(x); });
  EXPECT_NE(said.find("fixed_updates"), std::string::npos) << said;
  const at::Tensor before = weight.detach().clone();
  GraphedStep fixed({.device = kDevice, .fixed_updates = true}, take);
  for (int i = 0; i < 5; ++i) fixed(x);
  EXPECT_EQ(fixed.captured(), 1);
  const at::Tensor expected = before - x.sum(0) * (5.0 / 8);
  EXPECT_TRUE(at::equal(weight, expected)) << weight << expected;
}

TEST_F(GraphedSteps, ABatchThatNobodyWaitedForIsARace) {
  Square square;
  GraphedStep step({.device = kDevice}, std::ref(square));
  const at::Tensor x = numbers(2, 1);
  for (int i = 0; i < 4; ++i) step(x);
  const c10::Stream side = device::side_stream(kDevice);
  {
    const c10::StreamGuard on(side);
    x.add_(1);
  }
  step(x);
  const std::vector<Race> races = cuda.take_races();
  ASSERT_FALSE(races.empty());
  EXPECT_EQ(races.front().kind, RaceKind::kReadAfterWrite) << races.front().text();
  device::order(side, device::current_stream(kDevice));
}

TEST_F(GraphedSteps, ArgumentsAndOptionsAreChecked) {
  GraphedStep step({.device = kDevice}, [](const std::string&) { return torch::zeros({}); });
  EXPECT_NE(message_of([&] { step(std::string("hidden")); }).find("tensors()"), std::string::npos);
  const auto nothing = [](const at::Tensor& x) { return x; };
  for (const GraphedStepOptions& options : {GraphedStepOptions{.device = kDevice, .warm_up = 1},
                                            {.device = kDevice, .graphs = 0},
                                            {.device = at::kCPU}}) {
    EXPECT_NE(message_of([&] { GraphedStep(options, nothing); }).find("GraphedStep"),
              std::string::npos);
  }
  GraphedStep on_host({.device = at::kCPU, .uncapturable = Uncapturable::kEager}, nothing);
  EXPECT_EQ(on_host(torch::ones({2})).sum().item<float>(), 2);
}

// A graph reads memory at its old address, whatever uses it now.
TEST_F(GraphedSteps, MemoryThatIsFreedUnderAGraphIsFound) {
  at::Tensor table = torch::ones({3}).to(kDevice);
  GraphedStep step({.device = kDevice, .warm_up = 2},
                   [&](const at::Tensor& x) { return (x * table).sum(); });
  const at::Tensor x = numbers(2, 1);
  for (int i = 0; i < 4; ++i) step(x);
  table = at::Tensor();
  EXPECT_THROW(step(x), c10::Error);
  const std::vector<Race> races = cuda.take_races();
  ASSERT_EQ(races.size(), 1u);
  EXPECT_EQ(races.front().kind, RaceKind::kFreedInUse);
}

}  // namespace
}  // namespace lockstep::inline v0::testing
