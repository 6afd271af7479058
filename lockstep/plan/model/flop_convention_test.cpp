#include "lockstep/plan/model/flop_convention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/plan/model/operators.h"

namespace lockstep::inline v0::plan::flop_convention_test {
namespace {

// Published tokens a second and TFLOP/s of one GPU: their quotient is the convention.
struct Row {
  const char* model;
  int64_t sequence;
  double tokens, tflops;
  const char* convention;
  double within;  // a share; the published figures are rounded
};

TEST(FlopConvention, PublishedColumnsAreReproduced) {
  for (const Row& row : {Row{"llama2-7b", 4096, 16847, 776, "nemo", 0.002},
                         Row{"llama2-13b", 4096, 8646, 754, "nemo", 0.002},
                         Row{"llama2-70b", 4096, 1707, 759, "nemo", 0.002},
                         Row{"llama3-8b", 8192, 12036, 697, "nemo", 0.002},
                         Row{"llama3-70b", 8192, 1533, 738, "nemo", 0.002},
                         Row{"nemotron-340b", 4096, 322, 678, "nemo", 0.005},
                         Row{"gpt3-175b", 2048, 726, 782, "nemo", 0.005},
                         Row{"llama3-8b", 8192, 14451, 744, "bridge", 0.002},
                         Row{"llama3-70b", 8192, 1602, 719, "bridge", 0.002},
                         Row{"llama3-405b", 8192, 292, 737, "bridge", 0.003},
                         Row{"mpt-70b", 2048, 1039, 421, "6n+attention", 0.002},
                         Row{"mpt-7b", 2048, 10643, 459, "6n+attention", 0.002},
                         Row{"mpt-1b", 2048, 44402, 404, "6n+attention", 0.002},
                         Row{"llama2-7b", 4096, 25206, 673, "lora", 0.015}}) {
    const double flops =
        flops_per_token(known_model(row.model), row.sequence, flop_convention(row.convention));
    EXPECT_NEAR(flops * row.tokens / 1e12 / row.tflops, 1, row.within)
        << row.model << " " << row.convention;
  }
}

// Narayanan et al.: 96 B s l h^2 (1 + s/(6h) + V/(16 l h)), with recomputation.
TEST(FlopConvention, MegatronsIsThePapers) {
  for (const auto& [layers, hidden, heads] :
       {std::tuple{24, 2304, 24}, std::tuple{96, 12288, 96}, std::tuple{128, 25600, 160}}) {
    const double l = layers, h = hidden, s = 2048, v = 51200;
    const double paper = 96 * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
    const ModelShape model = gpt_model("gpt", layers, hidden, heads, 51200, 2048);
    EXPECT_NEAR(flops_per_token(model, 2048, flop_convention("megatron"), true) / paper, 1, 0.002);
  }
}

// The operators multiply what the conventions count: forward is a third.
TEST(FlopConvention, OperatorsMultiplyWhatIsCounted) {
  for (const char* name :
       {"llama2-7b", "llama3-70b", "gpt3-175b", "qwen3-30b-a3b", "deepseek-v3"}) {
    const ModelShape model = known_model(name);
    const double tokens = 4096;
    double flops = 2 * tokens * static_cast<double>(model.vocab * model.hidden);
    for (int64_t layer = 0; layer < model.layers; ++layer) {
      const LayerOperators found =
          layer_operators(model, layer,
                          {.rows = tokens,
                           .sequence = tokens,
                           .experts_here = static_cast<double>(model.experts),
                           .expert_rows = tokens * static_cast<double>(model.experts_per_token)});
      for (const MatrixProduct& product : found.products) flops += product.flops();
      flops += found.score_flops;
    }
    FlopConvention convention = flop_convention("bridge");
    EXPECT_NEAR(3 * flops / tokens / flops_per_token(model, 4096, convention), 1, 0.003) << name;
  }
}

TEST(FlopConvention, TensorDividesTheProducts) {
  const ModelShape model = known_model("llama3-70b");
  const auto flops = [&](int tensor) {
    double sum = 0;
    for (const MatrixProduct& product :
         layer_operators(model, 0, {.rows = 4096, .sequence = 4096, .tensor = tensor}).products)
      sum += product.flops();
    return sum;
  };
  EXPECT_DOUBLE_EQ(flops(1), 8 * flops(8));
}

TEST(FlopConvention, UnknownNamesAreRefused) {
  EXPECT_THAT(message_of<InvalidArgument>([] { flop_convention("nemmo"); }),
              ::testing::HasSubstr("did you mean nemo?"));
}

}  // namespace
}  // namespace lockstep::inline v0::plan::flop_convention_test
