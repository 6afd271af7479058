#include "lockstep/plan/estimate/estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

namespace lockstep::inline v0::plan::estimate_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// All of everything is reached, and links are so fast that they take no time.
Stack ideal() {
  Stack stack;
  stack.matrix = stack.attention = stack.memory = stack.links = stack.overlap = 1;
  stack.half = stack.passes = stack.logit_bytes = 0;
  return stack;
}
Machine ideal_machine() {
  Machine machine = known_machine("h100");
  machine.launch = 0;
  machine.memory_bandwidth = 1e18;
  machine.inside = machine.between = {0, 1e18};
  return machine;
}

Estimate of(const Layout& layout, const char* model = "llama3-8b", const char* machine = "h100") {
  return estimate(known_model(model), layout, known_machine(machine), Stack{});
}

TEST(Estimate, AnIdealMachineReachesItsPeak) {
  const ModelShape model = known_model("llama2-7b");
  const Layout layout{.global_batch = 4, .sequence = 4096};
  const Estimate found = estimate(model, layout, ideal_machine(), ideal());
  // Attention's kernel multiplies 3.5 times the forward where the convention counts 3.
  const double products = flops_per_token(model, 4096, flop_convention("bridge")) -
                          flops_per_token(model, 4096, {.scores = 0, .embeddings = false});
  const double expected = (flops_per_token(model, 4096, flop_convention("bridge")) + products / 6) *
                          4 * 4096 / 989.4e12;
  EXPECT_NEAR(found.step / expected, 1, 0.002);
}

TEST(Estimate, PartsSumToTheStep) {
  for (const Layout& layout : {Layout{}, Layout{.data = 8, .zero = 3, .global_batch = 16},
                               Layout{.data = 2,
                                      .pipe = 4,
                                      .tensor = 2,
                                      .chunks = 2,
                                      .schedule = "interleaved",
                                      .global_batch = 32},
                               Layout{.data = 4,
                                      .context = 2,
                                      .zero = 1,
                                      .global_batch = 8,
                                      .activations = Activations::kRecomputed}}) {
    const Estimate found = of(layout);
    double sum = 0;
    for (const auto& [name, seconds] : found.time.parts()) {
      EXPECT_GE(seconds, -1e-9) << name;
      sum += seconds;
    }
    EXPECT_NEAR(sum / found.step, 1, 1e-9);
    EXPECT_NEAR(found.tokens_per_second * static_cast<double>(layout.ranks()) * found.step,
                static_cast<double>(layout.global_batch * layout.sequence), 1);
  }
}

// Four ranks of a host on fewer processors.
TEST(Estimate, PartsSumToTheStepWhereRanksShareProcessors) {
  Machine machine = known_machine("xeon-8480");
  machine.host = true;
  machine.ranks_per_host = 4;
  for (machine.processors = 1; machine.processors <= 4; ++machine.processors) {
    for (const char* schedule : {"1f1b", "interleaved"}) {
      for (const int pipe : {2, 4}) {
        const Layout layout{.data = 4 / pipe,
                            .pipe = pipe,
                            .chunks = std::string_view(schedule) == "interleaved" ? 2 : 1,
                            .schedule = schedule,
                            .global_batch = 64};
        const Estimate found =
            estimate(known_model("gpt2"), layout, machine, known_stack("lockstep"));
        double sum = 0;
        for (const auto& [name, seconds] : found.time.parts()) {
          EXPECT_GE(seconds, -1e-9) << name << " " << machine.processors;
          sum += seconds;
        }
        EXPECT_NEAR(sum / found.step, 1, 1e-9);
      }
    }
  }
}

// A stage that computes most sets the pace where it has a processor for itself, in the first micro-batches and in all
// further ones: from twelve to sixty-four the step grows by what that stage takes.
TEST(Estimate, TheHeaviestStageSetsThePace) {
  ModelShape model = known_model("gpt2");
  Machine machine = known_machine("xeon-8480");
  machine.host = true;
  machine.ranks_per_host = 4;
  machine.processors = 3;
  const auto step = [&](int64_t batches) {
    const Layout layout{.pipe = 4, .cut = {1, 1, 1, 9}, .global_batch = batches};
    return estimate(model, layout, machine, known_stack("lockstep")).step;
  };
  const double a_batch = (step(64) - step(32)) / 32;
  EXPECT_NEAR((step(32) - step(24)) / 8 / a_batch, 1, 0.02);
  // And within those that are simulated one by one.
  EXPECT_NEAR((step(11) - step(9)) / 2 / a_batch, 1, 0.05);
}

// The papers' bubble: (p - 1) / m of 1f1b, divided by the chunks where interleaved.
TEST(Estimate, BubblesAreThePapers) {
  ModelShape model = known_model("gpt2");
  model.layers = 16;
  model.head = false;
  const auto bubble = [&](const char* schedule, int chunks, int64_t batch) {
    const Layout layout{.pipe = 4, .chunks = chunks, .schedule = schedule, .global_batch = batch};
    const Estimate found = estimate(model, layout, ideal_machine(), ideal());
    return found.time.bubble / (found.step - found.time.bubble);
  };
  EXPECT_NEAR(bubble("1f1b", 1, 8), 3.0 / 8, 1e-6);
  EXPECT_NEAR(bubble("1f1b", 1, 400), 3.0 / 400, 1e-6);
  EXPECT_NEAR(bubble("interleaved", 2, 8), 3.0 / 16, 1e-6);
  EXPECT_NEAR(bubble("interleaved", 4, 4000), 3.0 / 16000, 1e-6);
}

TEST(Estimate, MoreOfAnythingSlowIsSlower) {
  const Layout tensor{.tensor = 8, .global_batch = 8};
  EXPECT_GT(of(tensor).time.tensor, 0);
  Machine slow = known_machine("h100");
  slow.inside.bandwidth /= 4;
  EXPECT_GT(estimate(known_model("llama3-8b"), tensor, slow, {}).step, 1.2 * of(tensor).step);
  const Layout kept{.global_batch = 64},
      recomputed{.global_batch = 64, .activations = Activations::kRecomputed};
  EXPECT_NEAR(of(recomputed).step / of(kept).step, 4.0 / 3, 0.05);
  EXPECT_GT(of(recomputed).time.recomputation, 0);
  // A divided optimizer sends as much and updates less.
  const Layout plain{.data = 8, .global_batch = 8}, zero{.data = 8, .zero = 1, .global_batch = 8};
  EXPECT_LT(of(zero).time.optimizer, of(plain).time.optimizer / 4);
  // Micro-batches of one sequence over slow links do not hide the gathers of parameters.
  const Layout full{.data = 64, .zero = 3, .global_batch = 64};
  EXPECT_GT(of(full).time.parameters, 0);
  const Layout experts{.expert = 8, .global_batch = 8};
  EXPECT_GT(of(experts, "mixtral-8x7b").time.expert, 0);
  EXPECT_GT(of({.context = 8, .global_batch = 1}).time.context, 0);
}

TEST(Estimate, LossesNameWhatDoesNotFit) {
  const Estimate found = of({.global_batch = 1}, "llama3-70b");
  EXPECT_FALSE(found.fits());
  EXPECT_THAT(found.losses(), Contains(HasSubstr("stage 0 does not fit by")));
  const Estimate piped =
      of({.pipe = 8, .tensor = 8, .global_batch = 8, .divides_rows = true}, "llama3-70b");
  EXPECT_TRUE(piped.fits());
  EXPECT_THAT(piped.losses(), Contains(HasSubstr("bubble of the pipeline")));
}

TEST(Estimate, UtilizationIsByConvention) {
  const ModelShape model = known_model("llama3-8b");
  const Layout layout{.global_batch = 8, .sequence = 8192};
  const Estimate found = of(layout);
  const double nemo =
      utilization(found, model, layout, known_machine("h100"), flop_convention("nemo"));
  const double bridge =
      utilization(found, model, layout, known_machine("h100"), flop_convention("bridge"));
  EXPECT_GT(nemo, bridge);
  EXPECT_GT(bridge, 0.3);
  EXPECT_LT(nemo, 0.8);
  EXPECT_NEAR(step_of(found.tokens_per_second, layout), found.step, 1e-9);
}

// 131072 ranks: one data replica is computed, with at most thrice as many micro-batches as stages.
TEST(Estimate, AThousandLayoutsTakeNoTime) {
  const ModelShape model = known_model("llama3-70b");
  const Layout layout{.data = 1024,
                      .pipe = 16,
                      .tensor = 8,
                      .chunks = 2,
                      .schedule = "interleaved",
                      .global_batch = 1024 * 64,
                      .divides_rows = true};
  EXPECT_EQ(layout.ranks(), 131072);
  PipelineShapes shapes;
  const auto begin = std::chrono::steady_clock::now();
  double sum = 0;
  for (int i = 0; i < 1000; ++i)
    sum += estimate(model, layout, known_machine("h100"), {}, &shapes).step;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_NEAR(sum / 1000 / estimate(model, layout, known_machine("h100"), {}).step, 1, 1e-9);
  EXPECT_LT(taken.count(), 30);  // half a second; generous for sanitizers and a loaded machine
  std::printf("1000 layouts: %.2f s\n", taken.count());
}

// What is extrapolated is what all micro-batches give.
TEST(Estimate, FewerMicroBatchesGiveTheSame) {
  const auto time = [](int64_t batch) {
    return of({.pipe = 4, .chunks = 2, .schedule = "interleaved", .global_batch = batch}).time;
  };
  const TimeParts twelve = time(12), many = time(1200);
  EXPECT_NEAR(many.bubble / twelve.bubble, 1, 1e-6);
  EXPECT_NEAR(many.matrices / twelve.matrices, 100, 1e-6);
}

// As where a head is so dear that a stage before it has the last norm alone.
TEST(Estimate, AChunkMayHaveNoLayer) {
  Layout layout{.pipe = 4};
  layout.global_batch = 8;
  const ModelShape model = known_model("llama3-8b");
  layout.cut = {16, 16, 0, 0};
  EXPECT_GT(estimate(model, layout, known_machine("h100"), known_stack("lockstep")).step, 0);
}

}  // namespace
}  // namespace lockstep::inline v0::plan::estimate_test
