#include "lockstep/rpc/autograd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <array>
#include <thread>

#include "lockstep/rpc/internal/core.h"
#include "lockstep/rpc/optimizer.h"
#include "lockstep/rpc/rpc_test_support.h"

namespace lockstep::inline v0::rpc {
namespace {

// A part of a model: a linear layer and a tanh.
struct Part {
  explicit Part(int64_t in, int64_t out, int64_t seed) : layer(in, out) {
    const torch::NoGradGuard no_grad;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    for (auto& parameter : layer->parameters())
      parameter.copy_(at::rand(parameter.sizes(), generator, parameter.options()) - 0.5);
  }
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x).tanh(); }
  torch::nn::Linear layer;
};

std::vector<RRef<at::Tensor>> parameters_of(Part& part) {
  std::vector<RRef<at::Tensor>> all;
  for (const auto& parameter : part.layer->parameters())
    all.push_back(Agent::current().own(std::make_shared<at::Tensor>(parameter)));
  return all;
}

Registry autograd_functions() {
  Registry registry;
  registry.add("part", [](int64_t in, int64_t out, int64_t seed) {
    return std::make_shared<Part>(in, out, seed);
  });
  registry.add("forward", &Part::forward);
  registry.add("parameters", parameters_of);
  registry.add("weight", [](Part& part) { return part.layer->weight.detach(); });
  // Nested: through another process's part, and then this one's.
  registry.add("forward_after", [](Part& part, RRef<Part> first, const at::Tensor& x) {
    return part.forward(first.rpc_sync<at::Tensor>("forward", x));
  });
  registry.add("forward_waiting", [](Part& part, const at::Tensor& x, int64_t milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return part.forward(x);
  });
  registry.add("forward_of",
               [](Part& part, RRef<at::Tensor> x) { return part.forward(x.to_here()); });
  registry.add("forward_here", [](Part& part, at::Tensor& x) { return part.forward(x); });
  registry.add("both", [](const at::Tensor& x, const at::Tensor& y) { return x * y; });
  registry.add("leaf", [](int64_t size) { return at::zeros({size}).requires_grad_(true); });
  registry.add("times", [](at::Tensor& leaf, double x) { return (leaf * x).sum(); });
  // Its backward takes the requested time.
  registry.add("forward_slow_back", [](Part& part, const at::Tensor& x, int64_t milliseconds) {
    const at::Tensor y = part.forward(x);
    y.register_hook([milliseconds](const at::Tensor&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    });
    return y;
  });
  registry.add("itself", [](const at::Tensor& x) { return x * 1; });
  registry.add("forward_shifted",
               [](Part& part, const RRef<at::Tensor>& x, int64_t by, int64_t milliseconds) {
                 const at::Tensor shifted = x.to_here() + by;
                 shifted.register_hook([milliseconds](const at::Tensor&) {
                   std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
                 });
                 return part.forward(shifted);
               });
  registry.add("gradient", [](Part& part) {
    for (const auto& [parameter, gradient] : context_gradients())
      if (parameter.is_same(part.layer->weight)) return gradient;
    throw InvalidArgument("the weight has no gradient");
  });
  registry.add("gradients", [] { return static_cast<int64_t>(context_gradients().size()); });
  add_optimizers(registry);
  return registry;
}

class AutogradTest : public ::testing::Test {
 protected:
  at::Tensor input(int64_t rows = 6) const {
    return at::arange(rows * 5, at::kFloat).view({rows, 5}).sin();
  }
  static at::Tensor loss_of(const std::vector<at::Tensor>& outputs) {
    return at::cat(outputs).pow(2).sum();
  }
  static std::vector<at::Tensor> all_of(const std::vector<Future<at::Tensor>>& answers) {
    std::vector<at::Tensor> all;
    for (const auto& answer : answers) all.push_back(answer.get());
    return all;
  }
  // b's part of a model and then c's, on the parts of a batch, as call(one, two, x, wait) begins
  // them: with each row of waits the gradients have the bits of one process.
  using TwoParts = std::function<Future<at::Tensor>(RRef<Part>& one, RRef<Part>& two,
                                                    const at::Tensor& x, int wait)>;
  void expect_one_process_of_two_parts(const std::vector<std::vector<int>>& rows,
                                       const TwoParts& call) {
    const auto count = static_cast<int64_t>(rows[0].size());
    Part first(5, 7, 1), last(7, 4, 2);
    const auto parts = (input(6 * count) * 100).chunk(count);
    std::vector<at::Tensor> outputs;
    for (const at::Tensor& x :
         parts)  // aligned like received tensors: a product's bits may depend on it
      outputs.push_back(last.forward(first.forward(x.clone())));
    loss_of(outputs).backward();
    auto one = a_.remote<Part>("b", "part", 5, 7, 1), two = a_.remote<Part>("c", "part", 7, 4, 2);
    for (const std::vector<int>& waits : rows) {
      AutogradContext context(a_);
      std::vector<Future<at::Tensor>> answers;
      for (size_t i = 0; i < waits.size(); ++i)
        answers.push_back(call(one, two, parts[i], waits[i]));
      context.backward({loss_of(all_of(answers))});
      EXPECT_TRUE(one.rpc_sync<at::Tensor>("gradient").equal(first.layer->weight.grad()));
      EXPECT_TRUE(two.rpc_sync<at::Tensor>("gradient").equal(last.layer->weight.grad()));
    }
  }

  Town town_;
  Agent a_ = town_.agent("a", autograd_functions()), b_ = town_.agent("b", autograd_functions()),
        c_ = town_.agent("c", autograd_functions());
};

TEST_F(AutogradTest, FiveStepsOfAModelOverThreeProcessesAreTheLocalOnesInEveryBit) {
  for (const char* optimizer : {"sgd", "adam"}) {
    // In this process: b's part, this one's, c's part.
    Part first(5, 7, 1), last(4, 3, 3);
    Part middle(7, 4, 2), own(7, 4, 2);
    std::vector<at::Tensor> parameters;
    for (Part* part : {&first, &middle, &last})
      for (const auto& one : part->layer->parameters()) parameters.push_back(one);
    const bool adam = std::string(optimizer) == "adam";
    std::unique_ptr<torch::optim::Optimizer> local;
    if (adam)
      local = std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.05));
    else
      local = std::make_unique<torch::optim::SGD>(parameters,
                                                  torch::optim::SGDOptions(0.05).momentum(0.9));

    auto remote_first = a_.remote<Part>("b", "part", 5, 7, 1);
    auto remote_last = a_.remote<Part>("c", "part", 4, 3, 3);
    auto references = remote_first.rpc_sync<std::vector<RRef<at::Tensor>>>("parameters");
    for (const auto& one : own.layer->parameters())
      references.push_back(a_.own(std::make_shared<at::Tensor>(one)));
    for (const auto& one : remote_last.rpc_sync<std::vector<RRef<at::Tensor>>>("parameters"))
      references.push_back(one);
    OptimizerRecipe recipe{.name = optimizer, .options = {{"lr", 0.05}}};
    if (!adam) recipe.options["momentum"] = 0.9;
    DistributedOptimizer distributed(a_, references, recipe);

    for (int step = 0; step < 5; ++step) {
      local->zero_grad();
      const at::Tensor x = input() + step;
      const at::Tensor wanted = last.forward(middle.forward(first.forward(x))).pow(2).sum();
      wanted.backward();
      local->step();

      AutogradContext context(a_);
      const at::Tensor h = own.forward(remote_first.rpc_sync<at::Tensor>("forward", x));
      const at::Tensor loss = remote_last.rpc_sync<at::Tensor>("forward", h).pow(2).sum();
      EXPECT_TRUE(loss.equal(wanted));
      context.backward({loss});
      EXPECT_TRUE(context.gradient_of(own.layer->weight).equal(middle.layer->weight.grad()));
      EXPECT_FALSE(own.layer->weight.grad().defined()) << "gradients are the context's";
      distributed.step(context);
    }
    EXPECT_TRUE(own.layer->weight.equal(middle.layer->weight)) << optimizer;
    EXPECT_TRUE(remote_first.rpc_sync<at::Tensor>("weight").equal(first.layer->weight))
        << optimizer;
    EXPECT_TRUE(remote_last.rpc_sync<at::Tensor>("weight").equal(last.layer->weight)) << optimizer;
  }
}

TEST_F(AutogradTest, NestedCallsAndReferencesToTensors) {
  Part first(5, 7, 1), second(7, 4, 2);
  const at::Tensor x = input();
  const at::Tensor wanted = second.forward(first.forward(x)).sum();
  wanted.backward();
  auto one = a_.remote<Part>("b", "part", 5, 7, 1);
  auto two = a_.remote<Part>("c", "part", 7, 4, 2);
  const auto check = [&](const std::function<at::Tensor()>& forward) {
    AutogradContext context(a_);
    const at::Tensor loss = forward().sum();
    EXPECT_TRUE(loss.equal(wanted));
    context.backward({loss});
    EXPECT_EQ(a_.rpc_sync<int64_t>("b", "gradients"), 2);
    EXPECT_EQ(a_.rpc_sync<int64_t>("c", "gradients"), 2);
    EXPECT_TRUE(context.gradients().empty());
  };
  check([&] { return two.rpc_sync<at::Tensor>("forward_after", one, x); });  // a -> c -> b
  check([&] {  // b's result stays there, c fetches it
    return two.rpc_sync<at::Tensor>("forward_of", one.remote<at::Tensor>("forward", x));
  });
  check([&] {  // c asks before it exists: the thread that makes it answers c, not a
    return two.rpc_sync<at::Tensor>("forward_of",
                                    one.remote<at::Tensor>("forward_waiting", x, 100));
  });
}

TEST_F(AutogradTest, TheSameTensorTwiceAndInputsThatWantGradients) {
  const at::Tensor x = input().requires_grad_(true), y = (input() + 1).requires_grad_(true);
  const auto wanted = torch::autograd::grad({(x * x * 2 + x * y).sum()}, {x, y});
  AutogradContext context(a_);
  const at::Tensor squared = a_.rpc_sync<at::Tensor>("b", "both", x, x);
  const at::Tensor product = a_.rpc_sync<at::Tensor>("c", "both", x, y);
  const at::Tensor again = a_.rpc_sync<at::Tensor>("b", "both", x, x);
  context.backward({(squared + again + product).sum()});
  EXPECT_TRUE(at::allclose(context.gradient_of(x), wanted[0]));
  EXPECT_TRUE(context.gradient_of(y).equal(wanted[1]));
  EXPECT_FALSE(x.grad().defined());
}

// A value that one call leaves at an owner, and another uses there, returns its gradient to the
// sender of the first call's inputs.
TEST_F(AutogradTest, GradientsThatComeBackLate) {
  Part local(5, 7, 1), b_part(7, 4, 2), b_last(4, 3, 3);
  const at::Tensor x = input();
  b_last.forward(b_part.forward(local.forward(x))).sum().backward();
  const at::Tensor wanted = local.layer->weight.grad();
  local.layer->weight.mutable_grad() = at::Tensor();

  auto part = a_.remote<Part>("b", "part", 7, 4, 2);
  auto last = a_.remote<Part>("b", "part", 4, 3, 3);
  AutogradContext context(a_);
  const auto h = part.remote<at::Tensor>("forward", local.forward(x));  // stays with b
  const at::Tensor loss = last.rpc_sync<at::Tensor>("forward_here", h).sum();
  context.backward({loss});
  EXPECT_TRUE(context.gradient_of(local.layer->weight).equal(wanted));
  EXPECT_EQ(a_.rpc_sync<int64_t>("b", "gradients"), 4);
}

// The parts of a batch run backward concurrently, and end in any order; the sums equal those of one
// process.
TEST_F(AutogradTest, TheOrderInWhichPassesEndChangesNoBit) {
  expect_one_process_of_two_parts(
      {{0, 0, 0, 0, 0, 0},
       {0, 20, 40, 60, 80, 100},
       {100, 80, 60, 40, 20, 0},
       {50, 0, 90, 10, 70, 30}},
      [](RRef<Part>& one, RRef<Part>& two, const at::Tensor& x, int wait) {
        const auto h = one.remote<at::Tensor>("forward_slow_back", x, wait);
        return two.rpc_async<at::Tensor>("forward_of", h);
      });
}

// A tensor that is sent in several calls gets its gradients from all of them, and any thread reads
// the answers in any order.
TEST_F(AutogradTest, TheOrderInWhichAnswersComeChangesNoBit) {
  constexpr int kCalls = 5;
  Part local(5, 7, 1), there(7, 4, 2);
  const at::Tensor x = input() * 100;
  {
    const at::Tensor h = local.forward(x);
    std::vector<at::Tensor> outputs;
    for (int i = 0; i < kCalls; ++i) outputs.push_back(there.forward(h * (i + 1)));
    loss_of(outputs).backward();
  }
  auto part = a_.remote<Part>("b", "part", 7, 4, 2);
  for (const auto& waits : std::vector<std::array<int, kCalls>>{
           {0, 0, 0, 0, 0}, {0, 20, 40, 60, 80}, {80, 60, 40, 20, 0}, {40, 0, 80, 20, 60}}) {
    AutogradContext context(a_);
    const at::Tensor h = local.forward(x);
    std::vector<Future<at::Tensor>> answers;
    for (int i = 0; i < kCalls; ++i)
      answers.push_back(part.rpc_async<at::Tensor>("forward_waiting", h * (i + 1), waits[i]));
    context.backward({loss_of(all_of(answers))});
    EXPECT_TRUE(context.gradient_of(local.layer->weight).equal(local.layer->weight.grad()));
    EXPECT_TRUE(part.rpc_sync<at::Tensor>("gradient").equal(there.layer->weight.grad()));
  }
}

// Calls that follow others get their places when they are declared, not when those have ended.
TEST_F(AutogradTest, TheOrderInWhichContinuationsRunChangesNoBit) {
  expect_one_process_of_two_parts(
      {{0, 20, 40, 60, 80}, {80, 60, 40, 20, 0}, {40, 0, 80, 20, 60}},
      [](RRef<Part>& one, RRef<Part>& two, const at::Tensor& x, int wait) {
        return one.template rpc_async<at::Tensor>("forward_waiting", x, wait)
            .then([&two](const at::Tensor& h) { return two.rpc_async<at::Tensor>("forward", h); });
      });
}

// Gradients of values that several calls leave at one owner, and others use there, return late in a
// fixed order, too.
TEST_F(AutogradTest, LateGradientsOfOneTensorAreSummedAsInOneProcess) {
  Part local(5, 7, 1), there(7, 4, 2);
  const at::Tensor x = input() * 100;
  {
    const at::Tensor h = local.forward(x);
    std::vector<at::Tensor> outputs;
    for (int i = 0; i < 4; ++i) outputs.push_back(there.forward(h + i));
    loss_of(outputs).backward();
  }
  auto part = a_.remote<Part>("b", "part", 7, 4, 2);
  for (const bool forward : {true, false}) {
    AutogradContext context(a_);
    const auto h = a_.remote<at::Tensor>("b", "itself", local.forward(x));  // stays with b
    std::vector<Future<at::Tensor>> answers;
    for (int i = 0; i < 4; ++i)
      answers.push_back(
          part.rpc_async<at::Tensor>("forward_shifted", h, i, 25 * (forward ? i : 3 - i)));
    context.backward({loss_of(all_of(answers))});
    EXPECT_TRUE(context.gradient_of(local.layer->weight).equal(local.layer->weight.grad()));
    EXPECT_TRUE(part.rpc_sync<at::Tensor>("gradient").equal(there.layer->weight.grad()));
  }
}

TEST_F(AutogradTest, ContextsOfSeveralThreadsDoNotMeet) {
  auto part = a_.remote<Part>("b", "part", 5, 7, 1);
  part.wait();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Part local(5, 7, 1);
      const at::Tensor x = (input() * (t + 1)).requires_grad_(true);
      const auto wanted = torch::autograd::grad({local.forward(x).sum()}, {x})[0];
      for (int i = 0; i < 20; ++i) {
        AutogradContext context(a_);
        context.backward({part.rpc_sync<at::Tensor>("forward", x).sum()});
        ASSERT_TRUE(context.gradient_of(x).equal(wanted));
      }
    });
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < 200 && b_.core()->contexts().size() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(b_.core()->contexts().size(), 0u) << "contexts that ended are forgotten";
}

TEST(Contexts, WhatHasEndedIsNotMadeAnew) {
  using internal::ContextId;
  const Town town;
  const Agent agent = town.agent("a");
  internal::Contexts& contexts = agent.core()->contexts();
  const ContextId here{1, 2}, under_way{1, 3}, shared{1, 4}, of_nine{9, 1};
  EXPECT_NE(contexts.find_or_make(here, 7), nullptr);
  contexts.forget(here);
  EXPECT_EQ(contexts.find_or_make(here, 7), nullptr) << "a call that was served too late";
  contexts.forget(under_way);
  EXPECT_EQ(contexts.find_or_make(under_way, 7), nullptr) << "its end was here before it";
  EXPECT_EQ(contexts.size(), 0U);
  contexts.find_or_make(shared, 7);
  contexts.find_or_make(shared, 8);
  contexts.find_or_make(of_nine, 7);
  contexts.forget_those_of(9);
  EXPECT_EQ(contexts.size(), 1U) << "its maker's end";
  contexts.forget_those_of(7);
  EXPECT_EQ(contexts.size(), 1U) << "8 may call again";
  contexts.forget_those_of(8);
  EXPECT_EQ(contexts.size(), 0U);
}

// A call that is served after its context has ended computes as usual, and nothing of it is kept.
TEST_F(AutogradTest, ACallThatComesLateLeavesNothing) {
  auto part = a_.remote<Part>("b", "part", 5, 7, 1);
  part.wait();
  Future<at::Tensor> late;
  {
    AutogradContext context(a_);
    late = part.rpc_async<at::Tensor>("forward_waiting", input(), 100);
  }
  EXPECT_TRUE(late.get().equal(Part(5, 7, 1).forward(input())));
  for (Agent* agent : {&a_, &b_}) {
    for (int i = 0; i < 200 && agent->core()->contexts().size() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(agent->core()->contexts().size(), 0U) << agent->name();
  }
}

// As in Hogwild: each has an optimizer of its own for the same parameter; no gradient is lost, and
// none counts twice.
TEST_F(AutogradTest, OptimizersOfOneParameterTakeTurns) {
  constexpr int kThreads = 4, kSteps = 20, kSize = 1 << 21;
  auto leaf = a_.remote<at::Tensor>("b", "leaf", kSize);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      DistributedOptimizer optimizer(a_, {leaf}, {.options = {{"lr", 1}}});
      for (int i = 0; i < kSteps; ++i) {
        AutogradContext context(a_);
        context.backward({leaf.rpc_sync<at::Tensor>("times", double(1 << t))});
        optimizer.step(context);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(
      leaf.to_here().equal(at::full({kSize}, -double(kSteps * ((1 << kThreads) - 1)), at::kFloat)));
}

TEST_F(AutogradTest, WhatCannotBeIsRefused) {
  auto part = a_.remote<Part>("b", "part", 5, 7, 1);
  at::Tensor y;
  {
    AutogradContext context(a_);
    EXPECT_THROW(AutogradContext{a_}, InvalidArgument);
    EXPECT_THROW(context.backward({at::ones({})}), InvalidArgument);
    EXPECT_THROW(context.backward({}), InvalidArgument);
    y = part.rpc_sync<at::Tensor>("forward", input());
    EXPECT_THROW(context.backward({y}), InvalidArgument);
    EXPECT_ANY_THROW(y.sum().backward()) << "not by the tensor's own backward()";
    const at::Tensor loss = y.sum();
    context.backward({loss}, true);
    context.backward({loss});
    EXPECT_THROW(context.backward({part.rpc_sync<at::Tensor>("forward", input()).sum() + y.sum()}),
                 RemoteError)
        << "freed";
  }
  EXPECT_THROW(DistributedOptimizer(a_, {}, {}), InvalidArgument);
  auto references = part.rpc_sync<std::vector<RRef<at::Tensor>>>("parameters");
  EXPECT_THROW(DistributedOptimizer(a_, references, {.name = "lbfgs"}), RemoteError);
  EXPECT_THROW(DistributedOptimizer(a_, references, {.options = {{"rate", 1}}}), RemoteError);
  // Without a context nothing is recorded.
  EXPECT_FALSE(part.rpc_sync<at::Tensor>("forward", input()).requires_grad());
}

}  // namespace
}  // namespace lockstep::inline v0::rpc
