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

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/flat/live_bytes.h"
#include "lockstep/testing/thread_ranks.h"
#include "lockstep/train/step_clock.h"
#include "lockstep/train/step_plan.h"

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

TEST(StepRecorder, TellsActivationsTemporariesAndGradients) {
  at::set_num_threads(1);
  testing::run_threads(1, [&](Communicator& comm) {
    torch::nn::Sequential net(torch::nn::Linear(100, 200), torch::nn::Linear(200, 300));
    const auto strategy = make_strategy("average");
    strategy->set_up(net.ptr(), comm);
    const at::Tensor input = torch::ones({640, 100});
    const StepTrace trace = strategy->gradients().tried(
        [&] { return StrategyGradients::TriedLoss{torch::relu(net->forward(input)).sum()}; });
    EXPECT_NEAR(static_cast<double>(trace.activations), 640 * (200 + 300) * 4, 2000);
    EXPECT_EQ(trace.gradients.size(), 4U);  // of their own, and gone again
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
    const StepBytes bytes = bytes_of(trace);
    EXPECT_EQ(bytes.activations, trace.activations);
    EXPECT_GT(bytes.temporaries, 0);
    // The first layer's weight gets its gradient when most activations are gone.
    EXPECT_GT(bytes.overlap, 0);
    // After another batch all gradients are there from the forward on.
    const StepTrace second = strategy->gradients().tried(
        [&] { return StrategyGradients::TriedLoss{net->forward(input).sum()}; }, true);
    EXPECT_EQ(second.gradients.size(), 4U);
    EXPECT_EQ(bytes_of(second).overlap, 0);
  });
}

TEST(StepBytes, AreSummedUpByWhatIsThereAtOnce) {
  constexpr int64_t kNone = AllocationEvent::kNone;
  // Activations of 100; a gradient of 40 comes when half of them are gone; 30 are there for a moment.
  const StepTrace trace{.allocations = {{50, kNone},
                                        {50, kNone},
                                        {30, kNone},
                                        {-30, 2},
                                        {-50, 1},
                                        {40, kNone},
                                        {-50, 0},
                                        {7, kNone}},
                        .gradients = {5},
                        .activations = 100};
  EXPECT_EQ(bytes_of(trace), (StepBytes{.activations = 100, .temporaries = 30, .overlap = 40}));
  EXPECT_EQ(bytes_of(trace).at_once() + 40, 130);
  EXPECT_EQ(most_of({.activations = 100, .temporaries = 30, .overlap = 40}, {.temporaries = 60}),
            (StepBytes{.activations = 100, .temporaries = 30, .overlap = 40}));
  EXPECT_EQ(most_of({.activations = 10, .temporaries = 3}, {.temporaries = 60}),
            (StepBytes{.activations = 10, .temporaries = 50}));
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

// What a forward and backward of n samples allocate.
template <typename Net, typename Gather>
auto tried_by(Net& net, const Gather& gather) {
  return [&net, gather](int64_t n) {
    const at::Tensor batch = gather(n);
    AllocationLog log;
    StepTrace trace;
    {
      const at::Tensor output = net->forward(batch);
      trace.activations = log.now();
      output.sum().backward();
      for (const at::Tensor& parameter : net->parameters())
        trace.gradients.push_back(log.allocation_of(parameter.grad()).value());
      std::ranges::sort(trace.gradients);
      net->zero_grad();
    }
    trace.allocations = log.trace();
    return trace;
  };
}

// A model whose computation draws and changes buffers, found out about before its first step.
TEST(StepPlan, IsWhatAStepTakesAndChangesNothing) {
  at::set_num_threads(1);
  torch::nn::Sequential net(torch::nn::Linear(100, 200), torch::nn::BatchNorm1d(200),
                            torch::nn::Dropout(0.5), torch::nn::Linear(200, 300));
  net->eval();
  net->ptr(0)->train();
  const at::Tensor samples = torch::rand({64, 100});
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& buffer : net->buffers()) buffers.push_back(buffer.clone());
  const at::Tensor generator = cpu_rng_state();
  const auto tried = tried_by(net, [&](int64_t n) { return samples.narrow(0, 0, n).clone(); });
  const StepPlan plan = plan_step(*net, 64, tried);
  EXPECT_EQ(plan.tried, 32);
  EXPECT_TRUE(at::equal(cpu_rng_state(), generator));
  EXPECT_FALSE(net->is_training());
  EXPECT_TRUE(net->ptr(0)->is_training());
  EXPECT_FALSE(net->ptr(1)->is_training());
  for (size_t i = 0; i < buffers.size(); ++i)
    EXPECT_TRUE(at::equal(net->buffers()[i], buffers[i])) << i;
  net->train();
  EXPECT_EQ(plan.bytes, bytes_of(tried(64)));
  EXPECT_GT(plan.bytes.activations, 64 * (200 + 300) * 4);
}

// Logical ranks have generators of their own, which go back, too.
TEST(StepPlan, ChangesNoLogicalRank) {
  testing::run_threads(2, [&](Communicator& comm) {
    torch::nn::Sequential net(torch::nn::Linear(10, 20), torch::nn::Dropout(0.5),
                              torch::nn::BatchNorm1d(20));
    const auto strategy = make_strategy("logical4");
    strategy->set_up(net.ptr(), comm);
    const at::Tensor states = strategy->gradients().random_states().clone();
    const at::Tensor mean = net->buffers()[0].clone();
    const StepPlan plan = plan_step(*net, 32, [&](int64_t n) {
      return strategy->gradients().tried([&] {
        const auto outputs = strategy->gradients().forward(
            n, [&] { return Strategy::Tensors{net->forward(torch::ones({n, 10}))}; });
        return StrategyGradients::TriedLoss{outputs[0].sum()};
      });
    });
    EXPECT_GT(plan.bytes.activations, 32 * 20 * 4);
    EXPECT_TRUE(at::equal(strategy->gradients().random_states(), states));
    EXPECT_TRUE(at::equal(net->buffers()[0], mean));
  });
}

TEST(StepPlan, SmallBatchesAreCountedAsTheyAre) {
  at::set_num_threads(1);
  torch::nn::Linear net(100, 200);
  for (const int64_t samples : {1, 2, 3, 5}) {
    const auto tried = tried_by(net, [](int64_t n) { return torch::ones({n, 100}); });
    const StepPlan plan = plan_step(*net, samples, tried);
    EXPECT_NEAR(static_cast<double>(plan.bytes.activations), static_cast<double>(samples) * 800,
                400);
    EXPECT_EQ(plan.tried, samples);
  }
}

// Work that goes piece by piece allocates other tensors with many samples than with few.
TEST(StepPlan, WhereSizesDecideAboutAllocationsAllSamplesAreTried) {
  at::set_num_threads(1);
  torch::nn::Linear net(100, 200);
  const auto tried = [&](int64_t n) {
    StepTrace trace;
    AllocationLog log;
    const at::Tensor sums = torch::zeros({n});
    for (int64_t begin = 0; begin < n; begin += 8) {
      const int64_t size = std::min<int64_t>(8, n - begin);
      sums.narrow(0, begin, size).copy_(net->forward(torch::ones({size, 100})).sum(1).detach());
    }
    trace.allocations = log.trace();
    return trace;
  };
  const StepPlan plan = plan_step(*net, 100, tried);
  EXPECT_EQ(plan.tried, 100);
  EXPECT_EQ(plan.bytes, bytes_of(tried(100)));
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
  const StepMemory predicted{.parameters = 2 << 20, .gradients = 1 << 20, .state = 4 << 20};
  StepMemory allocated = predicted;
  allocated.set({.activations = 700 << 10, .temporaries = 100 << 10, .overlap = 50 << 10});
  EXPECT_EQ(to_text(allocated),
            "parameters 2.0 MiB, gradients 1.0 MiB, optimizer 4.0 MiB, activations 700 KiB, "
            "temporaries 100 KiB");
  EXPECT_EQ(to_json(allocated).dump(),
            R"({"parameters":2097152,"gradients":1048576,"optimizer":4194304,"buffers":0,)"
            R"("average":0,"activations":716800,"temporaries":102400,"total":8108032})");
  const std::string svg = memory_svg(predicted, allocated);
  for (const char* text : {"Memory of a rank", ">predicted, no activations<", "allocated",
                           "7.0 MiB", "7.7 MiB", "activations", "temporaries", ">MiB<"})
    EXPECT_THAT(svg, HasSubstr(text));
  const std::string chinese = memory_svg(predicted, allocated, /*chinese=*/true);
  for (const char* text :
       {"一个 rank 的内存", "预测（不含激活值）", "实际分配", "7.7 MiB", "激活值", "临时张量"})
    EXPECT_THAT(chinese, HasSubstr(text));
  EXPECT_THAT(memory_svg(allocated, allocated), HasSubstr(">predicted<"));
}

TEST(MemoryReport, HasEveryRankInItsJson) {
  const StepMemory four{.parameters = 4000}, five{.parameters = 5000};
  const auto json = to_json(std::vector<RankMemory>{{five, four}, {four, four}});
  EXPECT_EQ(json.at("difference_percent"), 25.0);
  EXPECT_EQ(json.at("predicted").at("total"), 5000);
  EXPECT_EQ(json.at("allocated").at("parameters"), 4000);
  EXPECT_EQ(json.at("ranks").dump(),
            R"([{"predicted":5000,"allocated":4000},{"predicted":4000,"allocated":4000}])");
  EXPECT_TRUE(to_json(std::vector<RankMemory>{}).empty());
}

// What was predicted and what is allocated stand side by side, of the rank that takes most.
TEST(MemoryReport, TheCallbackSaysBoth) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    torch::nn::Sequential net(torch::nn::Linear(30, 50));
    const auto strategy = make_strategy("ddp");
    strategy->set_up(net.ptr(), comm);
    const auto optimizer =
        strategy->state().make_optimizer({net->parameters()}, torch::optim::AdamWOptions(1e-3));
    net->forward(torch::ones({2, 30})).sum().backward();
    strategy->state().step(*optimizer);
    const auto said = [&](std::optional<int64_t> planned, int64_t counted, int64_t average = 0) {
      std::vector<std::string> lines;
      std::function<void(const std::string&)> say;
      if (comm.rank() == 0) say = [&](const std::string& line) { lines.push_back(line); };
      MemoryCallback callback(
          *strategy, *optimizer, say, dir / "m.svg",
          planned ? std::optional(StepBytes{.activations = *planned}) : std::nullopt, average);
      for (int i = 0; i < 2; ++i)
        callback.on_step({}, {.memory = {.activations = counted, .temporaries = 0}});
      EXPECT_EQ(callback.ranks().size(), 2U);
      return lines;
    };
    const std::string place = "Memory of a rank",
                      all = "parameters 6.1 KiB, gradients 6.1 KiB, optimizer 12 KiB, activations ";
    const auto expect = [&](const std::vector<std::string>& lines,
                            const std::vector<std::string>& expected) {
      EXPECT_EQ(lines, comm.rank() == 0 ? expected : std::vector<std::string>{});
    };
    expect(said(410, 400), {place + ", predicted: " + all + "410 B; 25 KiB in all",
                            place + ", allocated: " + all + "400 B; 25 KiB in all, as predicted"});
    expect(said(400, 4000),
           {place + ", predicted: " + all + "400 B; 25 KiB in all",
            place + ", allocated: " + all + "3.9 KiB; 28 KiB in all, 12.5 % more than predicted"});
    expect(said(std::nullopt, 400), {place + ", allocated: " + all + "400 B; 25 KiB in all"});
    expect(
        said(400, 400, 6 << 10),
        {place +
             ", predicted: parameters 6.1 KiB, gradients 6.1 KiB, optimizer 12 KiB, average 6.0 KiB, activations 400 B; 31 KiB in all",
         place +
             ", allocated: parameters 6.1 KiB, gradients 6.1 KiB, optimizer 12 KiB, average 6.0 KiB, activations 400 B; 31 KiB in all, as predicted"});
    // Rank 1 takes most.
    expect(said(comm.rank() * 9000 + 400, comm.rank() * 8000 + 400),
           {"Memory of rank 1, which takes most, predicted: " + all + "9.2 KiB; 33 KiB in all",
            "Memory of rank 1, which takes most, allocated: " + all +
                "8.2 KiB; 32 KiB in all, 3.0 % less than predicted"});
    comm.barrier();
    EXPECT_THAT(dir.read("m.svg"), HasSubstr("allocated"));
    EXPECT_THAT(dir.read("m_zh.svg"), HasSubstr("实际分配"));
  });
}

// Of a batch that would never go into memory nothing is tried but a few samples.
TEST(StepPlan, WhatIsTooLargeIsToldByAFewSamples) {
  at::set_num_threads(1);
  torch::nn::Linear net(100, 200);
  int64_t largest = 0;
  const auto plan = [&](int64_t samples, StepPlanOptions options) {
    largest = 0;
    const auto gather = [&](int64_t n) {
      largest = std::max(largest, n);
      return torch::ones({n, 100});
    };
    return static_cast<double>(
        plan_step(*net, samples, tried_by(net, gather), options).bytes.activations);
  };
  constexpr int64_t kSamples = 1'000'000'000, kLimit = 2'000'000;
  EXPECT_NEAR(plan(kSamples, {.limit = kLimit}), 800e9, 10e9);
  EXPECT_EQ(largest, 4);
  EXPECT_NEAR(plan(1000, {.limit = kLimit}), 800e3, 10e3);
  EXPECT_EQ(largest, 500);
  // As many of each micro-batch, and no more where another rank has counted so.
  EXPECT_NEAR(plan(kSamples, {.limit = kLimit, .micro_batches = 8}), 800e9, 10e9);
  EXPECT_EQ(largest, 32);
  EXPECT_NEAR(plan(1000, {.limit = kLimit, .any = [](bool) { return true; }}), 800e3, 10e3);
  EXPECT_EQ(largest, 4);
}

}  // namespace
}  // namespace lockstep::inline v0
