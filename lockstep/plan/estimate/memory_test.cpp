#include "lockstep/plan/estimate/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::plan::memory_test {
namespace {

using ::testing::HasSubstr;

ModelShape gpt(int64_t layers, int64_t hidden, int64_t heads) {
  return gpt_model("gpt", layers, hidden, heads, 51200, 2048);
}
Stack unfused() {
  Stack stack;
  stack.fused_attention = false;
  stack.keeps_gathered = false;
  return stack;
}

// Korthikanti et al., arXiv:2205.05198, table 2: bytes of a layer, s b h (34 + 5 a s / h) and its divisions.
TEST(Memory, ActivationsOfALayerAreThePapers) {
  const ModelShape model = gpt(96, 12288, 96);
  const double s = 2048, b = 1, h = 12288, a = 96, t = 8;
  const auto bytes = [&](const Layout& layout) {
    return layer_activation_bytes(model, 0, layout, unfused());
  };
  EXPECT_DOUBLE_EQ(bytes({}), s * b * h * (34 + 5 * a * s / h));
  EXPECT_DOUBLE_EQ(bytes({.tensor = 8}), s * b * h * (10 + 24 / t + 5 * a * s / (h * t)));
  EXPECT_DOUBLE_EQ(bytes({.tensor = 8, .divides_rows = true}),
                   s * b * h / t * (34 + 5 * a * s / h));
  EXPECT_DOUBLE_EQ(
      bytes({.tensor = 8, .activations = Activations::kSelective, .divides_rows = true}),
      s * b * h / t * 34);
  EXPECT_DOUBLE_EQ(bytes({.activations = Activations::kRecomputed}), 2 * s * b * h);
  // Gathered rows that stay for the backward: the inputs of two products.
  Stack keeps = unfused();
  keeps.keeps_gathered = true;
  EXPECT_DOUBLE_EQ(layer_activation_bytes(model, 0, {.tensor = 8, .divides_rows = true}, keeps),
                   s * b * h / t * (30 + 4 * t + 5 * a * s / h));
  // One kernel for all of attention keeps no scores.
  EXPECT_DOUBLE_EQ(layer_activation_bytes(model, 0, {}, Stack{}), s * b * h * 34);
}

// Rajbhandari et al., arXiv:1910.02054, table 1: a model of 7.5 billion parameters on 64 ranks, in GB.
TEST(Memory, StateIsThePapers) {
  ModelShape model = gpt(36, 4096, 32);
  const double billions = static_cast<double>(parameter_count(model)) / 1e9;
  const auto state = [&](int zero) {
    const Layout layout{.data = 64, .zero = zero, .global_batch = 64};
    return estimate_memory(model, layout, {}).of_worst().state() / 1e9 * 7.5 / billions;
  };
  EXPECT_NEAR(state(0), 120, 0.1);
  EXPECT_NEAR(state(1), 31.4, 0.1);
  EXPECT_NEAR(state(2), 16.6, 0.1);
  EXPECT_NEAR(state(3), 1.88, 0.01);
}

TEST(Memory, ParametersOfStagesSumToTheModel) {
  for (const char* name : {"llama3-8b", "gpt3-175b", "deepseek-v3", "qwen3-30b-a3b"}) {
    const ModelShape model = known_model(name);
    double sum = 0;
    for (const StageParameters& stage : stage_parameters(model, {.pipe = 4}))
      sum += stage.dense + stage.experts;
    const double tied = model.tied ? static_cast<double>(model.vocab * model.hidden) : 0;
    EXPECT_DOUBLE_EQ(sum, static_cast<double>(parameter_count(model)) + tied) << name;
  }
}

TEST(Memory, APipelineHoldsWhatItsScheduleHolds) {
  const ModelShape model = gpt(16, 1024, 16);
  const auto held = [&](const char* schedule, int chunks, size_t stage) {
    const Layout layout{.pipe = 4, .chunks = chunks, .schedule = schedule, .global_batch = 32};
    return estimate_memory(model, layout, {}).stages[stage].activations /
           (16 / 4 * layer_activation_bytes(model, 0, layout, {}));
  };
  EXPECT_DOUBLE_EQ(held("1f1b", 1, 0), 4);
  EXPECT_DOUBLE_EQ(held("1f1b", 1, 2), 2);
  // (1 + (p - 1) / (p v)) times 1f1b's first stage (arXiv:2205.05198, section 4.2.3), p / v (p v + p - 1) / p chunks.
  EXPECT_DOUBLE_EQ(held("interleaved", 2, 0), 4 * (1 + 3.0 / 8));
}

TEST(Memory, MicroBatchesBeyondThePipelineHoldNothingMore) {
  const ModelShape model = gpt(16, 1024, 16);
  const auto total = [&](int64_t batch) {
    return estimate_memory(model, {.pipe = 4, .global_batch = batch}, {}).stages[0].total();
  };
  EXPECT_DOUBLE_EQ(total(16), total(4096));
  EXPECT_LT(total(2), total(16));
}

TEST(Memory, EachWayDividesWhatItDivides) {
  const ModelShape model = known_model("llama3-8b");
  const auto parts = [&](Layout layout) {
    layout.global_batch = 8;
    return estimate_memory(model, layout, {}).of_worst();
  };
  const MemoryParts one = parts({});
  EXPECT_GT(one.activations, parts({.context = 2}).activations * 1.9);
  EXPECT_GT(one.logits, parts({.tensor = 4}).logits * 3.9);
  EXPECT_GT(one.activations, parts({.tensor = 4, .divides_rows = true}).activations * 2.5);
  EXPECT_GT(one.activations, parts({.activations = Activations::kRecomputed}).activations * 5);
  EXPECT_EQ(one.gathered, 0);
  EXPECT_GT(parts({.data = 8, .zero = 3}).gathered, 0);
  const ModelShape experts = known_model("mixtral-8x7b");
  EXPECT_LT(estimate_memory(experts, {.expert = 8, .global_batch = 8}, {}).of_worst().parameters,
            estimate_memory(experts, {}, {}).of_worst().parameters / 6);
}

TEST(Memory, PartsSumToTheTotal) {
  const MemoryParts parts =
      estimate_memory(known_model("llama3-8b"), {.data = 2, .zero = 3, .global_batch = 2}, {})
          .of_worst();
  double sum = 0;
  for (const auto& [name, bytes] : parts.parts()) sum += bytes;
  EXPECT_DOUBLE_EQ(sum, parts.total());
  EXPECT_THAT(message_of<InvalidArgument>(
                  [] { estimate_memory(known_model("llama3-8b"), {.tensor = 5}, {}); }),
              HasSubstr("32 heads"));
}

}  // namespace
}  // namespace lockstep::inline v0::plan::memory_test
