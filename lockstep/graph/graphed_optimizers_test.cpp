// Steps as graphs, combined with changes of optimizers, gradients and graphs between them.
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/stream.h"
#include "lockstep/graph/graphed_step.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/testing/fake_cuda/fake_cuda.h"
#include "lockstep/testing/fake_cuda/fake_cuda_fixture_test.h"

namespace lockstep::inline v0::testing {
namespace {

const at::Device kCard{at::kCUDA, 0};

class GraphedOptimizers : public WithoutRaces {
 protected:
  void SetUp() override {
    WithoutRaces::SetUp();
    if (const std::string why = device::why_no_graphs(kCard); !why.empty()) GTEST_SKIP() << why;
  }
};

at::Tensor weight_of(int64_t n) {
  return torch::arange(n).div(8).add(1).to(kCard).requires_grad_();
}

at::Tensor inputs_at(int step) {
  return torch::arange(3).add(step).remainder(5).div(8).to(kCard);
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

// One parameter, and an optimizer whose steps the device may skip.
template <typename Optimizer, typename Options>
struct Model {
  explicit Model(Options options) : optimizer({weight}, options) {}
  at::Tensor operator()(const at::Tensor& x) {
    optimizer.zero_grad();
    at::Tensor loss = (weight * x).square().sum();
    loss.backward();
    optimizer.step({.max_norm = 1.0, .on_non_finite = optim::NonFinite::kSkip});
    return loss;
  }
  at::Tensor weight = weight_of(3);
  Optimizer optimizer;
};
using SgdModel = Model<optim::FusedSGD, torch::optim::SGDOptions>;
using AdamModel = Model<optim::FusedAdam, torch::optim::AdamOptions>;

// The same steps eagerly and as graphs, with `between` after step `at`, in both cases.
template <typename M, typename Options>
void expect_as_eagerly(const Options& options, int at, const std::function<void(M&)>& between) {
  M eager(options), graphed(options);
  GraphedStep step({.device = kCard, .warm_up = 2}, std::ref(graphed));
  for (int i = 0; i < 7; ++i) {
    step(inputs_at(i));
    eager(inputs_at(i));
    if (i != at) continue;
    between(eager);
    between(graphed);
  }
  EXPECT_EQ(step.captured(), 1);
  EXPECT_TRUE(at::equal(graphed.weight, eager.weight)) << graphed.weight << eager.weight;
}

// Between the last eager step and the capture: a graph must not copy it in each replay.
TEST_F(GraphedOptimizers, StateThatIsLoadedBeforeTheCaptureIsTakenOnce) {
  expect_as_eagerly<SgdModel>(
      torch::optim::SGDOptions(1.0 / 16).momentum(0.5), 1, [](SgdModel& model) {
        for (auto& [key, state] : model.optimizer.state()) {
          at::Tensor& momentum =
              static_cast<torch::optim::SGDParamState&>(*state).momentum_buffer();
          momentum = momentum.mul(0.5);
        }
      });
}

TEST_F(GraphedOptimizers, CountsThatAreSettledBeforeTheCaptureGoOn) {
  expect_as_eagerly<AdamModel>(torch::optim::AdamOptions(1.0 / 16), 1,
                               [](AdamModel& model) { model.optimizer.settle(); });
}

TEST_F(GraphedOptimizers, NumbersThatAreNearlyAlikeAreNotTheSame) {
  const at::Tensor weight = weight_of(3);
  optim::FusedSGD optimizer({weight}, torch::optim::SGDOptions(1.0 / 16));
  GraphedStep step({.device = kCard, .warm_up = 2}, [&](const at::Tensor& x, double scale) {
    optimizer.zero_grad();
    at::Tensor loss = (weight * x * scale).sum();
    loss.backward();
    optimizer.step();
    return loss;
  });
  for (int i = 0; i < 4; ++i) step(inputs_at(i), 1e-7);
  Counting counted;
  step(inputs_at(0), 2e-7);
  EXPECT_EQ(counted.counts().replays, 0);
  step(inputs_at(0), 1e-7);
  EXPECT_EQ(counted.counts().replays, 1);
}

// Gradients made in the failed capture have no values, and the next backward would add to them.
TEST_F(GraphedOptimizers, GradientsOfAFailedCaptureAreNotAddedTo) {
  const auto run = [](bool graphed) {
    const at::Tensor weight = weight_of(3);
    optim::FusedSGD optimizer({weight}, torch::optim::SGDOptions(1.0 / 16));
    const auto take = [&](const at::Tensor& x) {
      at::Tensor loss = (weight * x).square().sum();
      loss.backward();
      loss.item<float>();
      optimizer.step();
      optimizer.zero_grad();
      return loss;
    };
    GraphedStep step({.device = kCard, .warm_up = 2, .uncapturable = Uncapturable::kEager}, take);
    for (int i = 0; i < 5; ++i) graphed ? step(inputs_at(i)) : take(inputs_at(i));
    EXPECT_EQ(step.captured(), 0);
    return weight.detach().cpu();
  };
  EXPECT_TRUE(at::equal(run(true), run(false)));
}

TEST_F(GraphedOptimizers, StepsThatSomeParametersDidNotTakeAreNamed) {
  const at::Tensor a = weight_of(3), b = weight_of(3);
  optim::FusedAdam optimizer({a, b}, torch::optim::AdamOptions(1.0 / 16));
  GraphedStep step({.device = kCard, .warm_up = 2}, [&](const at::Tensor& x) {
    optimizer.zero_grad();
    at::Tensor loss = (a * x).sum() + (b * x).square().sum();
    loss.backward();
    optimizer.step();
    return loss;
  });
  for (int i = 0; i < 4; ++i) step(inputs_at(i));
  optimizer.zero_grad();
  (a * inputs_at(4)).sum().backward();
  b.mutable_grad() = at::Tensor();
  optimizer.step();
  const std::string said = refusal_of([&] { step(inputs_at(5)); });
  EXPECT_NE(said.find("steps that others did not"), std::string::npos) << said;
}

// A graph keeps the settings of its capture; only the learning rate changes.
TEST_F(GraphedOptimizers, SettingsThatChangeAreNamed) {
  AdamModel model(torch::optim::AdamOptions(1.0 / 16));
  GraphedStep step({.device = kCard, .warm_up = 2}, std::ref(model));
  for (int i = 0; i < 4; ++i) step(inputs_at(i));
  auto& options =
      static_cast<torch::optim::AdamOptions&>(model.optimizer.param_groups()[0].options());
  options.lr(1.0 / 32);
  step(inputs_at(4));
  options.weight_decay(0.5);
  const std::string said = refusal_of([&] { step(inputs_at(5)); });
  EXPECT_NE(said.find("settings"), std::string::npos) << said;
  options.weight_decay(0);
  step(inputs_at(5));
  model.optimizer.settle();
  for (const auto& [key, state] : model.optimizer.state())
    EXPECT_EQ(static_cast<const torch::optim::AdamParamState&>(*state).step(), 6);
}

TEST_F(GraphedOptimizers, StreamsOfAnotherKindAreRefused) {
  const auto nothing = [](const at::Tensor& x) { return x; };
  const std::string said = refusal_of(
      [&] { GraphedStep({.device = kCard, .stream = device::current_stream(kCard)}, nothing); });
  EXPECT_NE(said.find("default"), std::string::npos) << said;
}

// Work begun for a replay that does not happen is undone, the last part first.
TEST_F(GraphedOptimizers, PartsOfAReplayThatFailsAreCancelled) {
  const c10::Stream side = device::side_stream(kCard);
  const at::Tensor sum = torch::zeros({3}).to(kCard);
  device::order(device::current_stream(kCard), side);
  std::vector<std::string> said;
  std::string fails;
  device::Graph graph(kCard);
  {
    const c10::StreamGuard on(side);
    graph.capture([&] {
      sum.add_(1);
      for (const std::string name : {"a", "b", "c"}) {
        const auto say = [&, name](const std::string& what) {
          said.push_back(name + what);
          if (said.back() == fails) throw std::runtime_error(fails);
        };
        device::capture_of(side)->add({.before = [say](bool) { say(" before"); },
                                       .start = [say] { say(" start"); },
                                       .meet = [say] { say(" meet"); },
                                       .after = [say] { say(" after"); },
                                       .cancel = [say] { say(" cancel"); }});
      }
    });
    using Lines = std::vector<std::string>;
    const auto replay = [&](const std::string& where) {
      fails = where;
      said.clear();
      try {
        graph.replay();
      } catch (const std::runtime_error&) {
        said.push_back("thrown");
      }
      return std::exchange(said, {});
    };
    EXPECT_EQ(replay(""),
              (Lines{"a before", "b before", "c before", "a start", "b start", "c start", "a meet",
                     "b meet", "c meet", "a after", "b after", "c after"}));
    EXPECT_EQ(replay("b before"),
              (Lines{"a before", "b before", "b cancel", "a cancel", "thrown"}));
    EXPECT_EQ(replay("a meet"),
              (Lines{"a before", "b before", "c before", "a start", "b start", "c start", "a meet",
                     "c cancel", "b cancel", "a cancel", "thrown"}));
    // The graph was submitted: the other parts continue.
    EXPECT_EQ(replay("a after").back(), "thrown");
  }
  device::order(side, device::current_stream(kCard));
  EXPECT_EQ(sum.sum().item<float>(), 2 * 3);
}

// A host's engine does not take part in replays.
TEST_F(GraphedOptimizers, CallsOfHostsAloneAreRefused) {
  const Communicator hosts(std::move(make_local_backends(1).front()), Topology{0, 1, 0, 1, 0}, {});
  const at::Tensor weight = weight_of(3), number = torch::ones({1});
  GraphedStep step({.device = kCard, .warm_up = 2}, [&](const at::Tensor& x) {
    Communicator comm = hosts;
    comm.all_reduce(number, ReduceOp::kSum);
    return (weight * x).sum();
  });
  for (int i = 0; i < 2; ++i) step(inputs_at(i));
  const std::string said = refusal_of([&] { step(inputs_at(2)); });
  EXPECT_NE(said.find("cannot be part of a graph"), std::string::npos) << said;
}

}  // namespace
}  // namespace lockstep::inline v0::testing
