#include "lockstep/train/memory_report.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/flat/live_bytes.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/activation_plan.h"
#include "lockstep/train/step_clock.h"

namespace lockstep::inline v0 {
namespace {

using ::testing::HasSubstr;

TEST(LiveBytes, CountsWhatIsLeft) {
  at::Tensor kept, gone;
  const at::Tensor before = torch::ones({1000});
  int64_t left = 0;
  {
    const LiveBytes live;
    EXPECT_EQ(live.now(), 0);
    gone = torch::ones({5000});
    kept = before * 2;
    EXPECT_GE(live.now(), 24'000);
    gone.reset();
    left = live.now();
    EXPECT_GE(live.most(), 24'000);
  }
  EXPECT_GE(left, 4000);
  EXPECT_LT(left, 4200);  // the allocator rounds up
  kept = torch::ones({7000});
  const LiveBytes other;
  EXPECT_EQ(other.now(), 0);
}

TEST(LiveBytes, OneWithinAnotherCountsItsOwn) {
  const LiveBytes outer;
  const at::Tensor before = torch::ones({1000});
  at::Tensor inside;
  {
    const LiveBytes inner;
    inside = torch::ones({5000});
    EXPECT_NEAR(static_cast<double>(inner.now()), 20'000, 200);
  }
  EXPECT_NEAR(static_cast<double>(outer.now()), 24'000, 400);
}

TEST(LiveBytes, AForwardLeavesItsActivations) {
  at::set_num_threads(1);
  torch::nn::Sequential net(torch::nn::Linear(100, 200), torch::nn::Linear(200, 300));
  const auto strategy = make_strategy("average");
  const at::Tensor input = torch::ones({64, 100});
  StepClock clock(*strategy, /*count=*/true);
  const at::Tensor output = clock.forward([&] { return net->forward(input); });
  EXPECT_NEAR(static_cast<double>(clock.activations()), 64 * (200 + 300) * 4, 2000);
  StepClock later(*strategy);
  later.forward([&] { return net->forward(input); });
  EXPECT_EQ(later.activations(), 0);
}

// A step that is one call has its forward within its backward: no second counts twice.
TEST(StepClock, APartWithinAnotherIsNotPartOfIt) {
  struct Waits final : StrategyGradients {
    double waiting() const override { return seconds; }
    double seconds = 0;
  };
  auto gradients = std::make_unique<Waits>();
  Waits& waits = *gradients;
  Strategy strategy({.name = "waits", .gradients = std::move(gradients)});
  StepClock clock(strategy);
  const auto work = [](int64_t rounds) {
    for (int64_t i = 0; i < rounds; ++i) (void)torch::ones({1000}).sum().item<float>();
  };
  const auto start = std::chrono::steady_clock::now();
  clock.backward([&] {
    clock.forward([&] {
      work(1000);
      waits.seconds += 5;
      return 0;
    });
    waits.seconds += 2;
  });
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
  const StepTimes& times = clock.times();
  EXPECT_EQ(times.waiting, 7);
  EXPECT_GT(times.forward + 5, 0);
  EXPECT_GE(times.backward + 2, -1e-9);
  EXPECT_LE(times.forward + times.backward + times.waiting, all.count() + 1e-9);
}

// What a forward of n samples leaves.
template <typename Net, typename Gather>
auto left_by(Net& net, const Gather& gather) {
  return [&net, gather](int64_t n) {
    const at::Tensor batch = gather(n);
    const LiveBytes live;
    const at::Tensor output = net->forward(batch);
    return live.now();
  };
}

// A model whose forward draws and changes buffers, found out about before its first step.
TEST(ActivationPlan, IsWhatAForwardLeavesAndChangesNothing) {
  at::set_num_threads(1);
  torch::nn::Sequential net(torch::nn::Linear(100, 200), torch::nn::BatchNorm1d(200),
                            torch::nn::Dropout(0.5), torch::nn::Linear(200, 300));
  net->eval();
  net->ptr(0)->train();
  const at::Tensor samples = torch::rand({64, 100});
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& buffer : net->buffers()) buffers.push_back(buffer.clone());
  const at::Tensor generator = cpu_rng_state();
  const int64_t planned = plan_activations(
      *net, 64, left_by(net, [&](int64_t n) { return samples.narrow(0, 0, n).clone(); }));
  EXPECT_TRUE(at::equal(cpu_rng_state(), generator));
  EXPECT_FALSE(net->is_training());
  EXPECT_TRUE(net->ptr(0)->is_training());
  EXPECT_FALSE(net->ptr(1)->is_training());
  for (size_t i = 0; i < buffers.size(); ++i)
    EXPECT_TRUE(at::equal(net->buffers()[i], buffers[i])) << i;
  net->train();
  const LiveBytes live;
  const at::Tensor output = net->forward(samples);
  // The allocator rounds each tensor up to 64 bytes.
  EXPECT_NEAR(static_cast<double>(planned), static_cast<double>(live.now()), 2000);
  EXPECT_GT(planned, 64 * (200 + 300) * 4);
}

TEST(ActivationPlan, SmallBatchesAreCountedAsTheyAre) {
  at::set_num_threads(1);
  torch::nn::Linear net(100, 200);
  for (const int64_t samples : {1, 2, 3, 5}) {
    const int64_t planned = plan_activations(
        *net, samples, left_by(net, [](int64_t n) { return torch::ones({n, 100}); }));
    EXPECT_NEAR(static_cast<double>(planned), static_cast<double>(samples) * 800, 400) << samples;
  }
}

// By the strategies' own plans: what is there after a step is what was said before it.
TEST(MemoryReport, WhatIsCountedIsWhatWasPlanned) {
  for (const char* name :
       {"ddp", "average", "horovod", "zero1", "zero2", "zero3", "fsdp", "diloco"}) {
    for (const bool adam : {true, false}) {
      testing::run_threads(3, [&](Communicator& comm) {
        torch::nn::Sequential net(torch::nn::Linear(30, 50), torch::nn::Linear(50, 7));
        net->parameters()[1].requires_grad_(false);
        const auto strategy = make_strategy(name);
        strategy->set_up(net.ptr(), comm);
        const auto optimizer =
            adam ? strategy->state().make_optimizer({net->parameters()},
                                                    torch::optim::AdamWOptions(1e-3))
                 : strategy->state().make_optimizer({net->parameters()},
                                                    torch::optim::SGDOptions(1e-3).momentum(0.9));
        const StepMemory planned = strategy->state().planned_memory(*optimizer);
        const auto outputs = strategy->gradients().forward(
            4, [&] { return Strategy::Tensors{net->forward(torch::ones({4, 30}))}; });
        strategy->gradients().compute([&] { return outputs[0].sum(); });
        strategy->state().step(*optimizer);
        EXPECT_EQ(strategy->state().memory(*optimizer), planned)
            << name << ": " << to_text(strategy->state().memory(*optimizer)) << " and "
            << to_text(planned);
        EXPECT_GT(planned.state, 0);
      });
    }
  }
}

TEST(MemoryReport, IsSaidAndDrawn) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1234), "1.2 KiB");
  EXPECT_EQ(bytes_text((1 << 20) - 100), "1.0 MiB");
  EXPECT_EQ(bytes_text(int64_t{12} << 30), "12 GiB");
  const StepMemory planned{.parameters = 2 << 20, .gradients = 1 << 20, .state = 4 << 20};
  StepMemory counted = planned;
  counted.activations = 700 << 10;
  EXPECT_EQ(to_text(counted),
            "parameters 2.0 MiB, gradients 1.0 MiB, optimizer 4.0 MiB, activations 700 KiB");
  EXPECT_EQ(to_json(counted).dump(),
            R"({"parameters":2097152,"gradients":1048576,"optimizer":4194304,"buffers":0,)"
            R"("average":0,"activations":716800})");
  const std::string svg = memory_svg(planned, counted);
  for (const char* text : {"Memory of a rank", ">planned, no activations<", "first step", "7.0 MiB",
                           "7.7 MiB", "activations", ">MiB<"})
    EXPECT_THAT(svg, HasSubstr(text));
  const std::string chinese = memory_svg(planned, counted, /*chinese=*/true);
  for (const char* text : {"一个 rank 的内存", "计划（不含激活值）", "第一步", "7.7 MiB", "激活值"})
    EXPECT_THAT(chinese, HasSubstr(text));
  EXPECT_THAT(memory_svg(counted, counted), HasSubstr(">planned<"));
}

// One line of nearly the same is enough: the plan, or what the first step took where that is news.
TEST(MemoryReport, TheCallbackSaysItOnce) {
  const TestDirectory dir;
  testing::run_threads(1, [&](Communicator& comm) {
    torch::nn::Sequential net(torch::nn::Linear(30, 50));
    const auto strategy = make_strategy("ddp");
    strategy->set_up(net.ptr(), comm);
    const auto optimizer =
        strategy->state().make_optimizer({net->parameters()}, torch::optim::AdamWOptions(1e-3));
    net->forward(torch::ones({2, 30})).sum().backward();
    strategy->state().step(*optimizer);
    const auto said = [&](std::optional<int64_t> planned, int64_t counted, int64_t average = 0) {
      std::vector<std::string> lines;
      MemoryCallback callback(
          *strategy, *optimizer, [&](const std::string& line) { lines.push_back(line); },
          dir / "m.svg", planned, average);
      EXPECT_EQ(lines.size(), planned ? 1U : 0U);
      for (int i = 0; i < 2; ++i) callback.on_step({}, {.activations = counted});
      return lines;
    };
    const std::string all = "parameters 6.1 KiB, gradients 6.1 KiB, optimizer 12 KiB, activations ";
    const std::string planned = "Memory of a rank, planned: " + all + "400 B; 25 KiB in all";
    EXPECT_EQ(said(400, 410), std::vector<std::string>{planned});
    EXPECT_EQ(said(400, 4000),
              (std::vector<std::string>{
                  planned, "Memory of a rank, first step: " + all + "3.9 KiB; 28 KiB in all"}));
    EXPECT_EQ(
        said(std::nullopt, 400),
        std::vector<std::string>{"Memory of a rank, first step: " + all + "400 B; 25 KiB in all"});
    EXPECT_EQ(said(400, 410, 6 << 10),
              std::vector<std::string>{"Memory of a rank, planned: parameters 6.1 KiB, gradients "
                                       "6.1 KiB, optimizer 12 KiB, average 6.0 KiB, activations "
                                       "400 B; 31 KiB in all"})
        << "an average is in the plan and in the count";
    EXPECT_THAT(dir.read("m.svg"), HasSubstr("first step"));
    EXPECT_THAT(dir.read("m_zh.svg"), HasSubstr("第一步"));
  });
}

// Of a batch that would never go into memory no forward is tried but of a few samples.
TEST(ActivationPlan, WhatIsTooLargeIsToldByAFewSamples) {
  at::set_num_threads(1);
  torch::nn::Linear net(100, 200);
  int64_t largest = 0;
  const auto plan = [&](int64_t samples, ActivationPlanOptions options) {
    largest = 0;
    const auto gather = [&](int64_t n) {
      largest = std::max(largest, n);
      return torch::ones({n, 100});
    };
    return plan_activations(*net, samples, left_by(net, gather), options);
  };
  constexpr int64_t kSamples = 1'000'000'000, kLimit = 1'000'000;
  EXPECT_NEAR(static_cast<double>(plan(kSamples, {.limit = kLimit})), 800e9, 10e9);
  EXPECT_EQ(largest, 4);
  EXPECT_NEAR(static_cast<double>(plan(1000, {.limit = kLimit})), 800e3, 10e3);
  EXPECT_EQ(largest, 500);
  // As many of each micro-batch, and no more where another rank has counted so.
  EXPECT_NEAR(static_cast<double>(plan(kSamples, {.limit = kLimit, .micro_batches = 8})), 800e9,
              10e9);
  EXPECT_EQ(largest, 32);
  EXPECT_NEAR(static_cast<double>(plan(1000, {.limit = kLimit, .any = [](bool) { return true; }})),
              800e3, 10e3);
  EXPECT_EQ(largest, 4);
}

}  // namespace
}  // namespace lockstep::inline v0
