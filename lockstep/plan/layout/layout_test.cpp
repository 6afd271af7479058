#include "lockstep/plan/layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::plan::layout_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const Layout& layout, const char* model = "llama3-8b") {
  const std::string line = message_of<InvalidArgument>([&] { check(layout, known_model(model)); });
  EXPECT_EQ(line.find('\n'), std::string::npos);
  return line;
}

TEST(Layout, CountsRanksAndBatches) {
  const Layout layout{
      .data = 4, .pipe = 2, .expert = 2, .tensor = 8, .micro_batch = 2, .global_batch = 64};
  EXPECT_EQ(layout.ranks(), 128);
  EXPECT_EQ(layout.batch_ranks(), 8);
  EXPECT_EQ(layout.micro_batches(), 4);
  EXPECT_EQ(layout.replicas(), 8);
  EXPECT_EQ(layout.expert_replicas(), 4);
  Layout folded = layout;
  folded.experts_folded = true;
  folded.expert = 16;
  EXPECT_EQ(folded.ranks(), 64);
  EXPECT_EQ(folded.expert_replicas(), 2);
}

TEST(Layout, PlacesAreByOrder) {
  const Layout layout{.data = 4, .pipe = 8, .context = 2, .tensor = 4};
  EXPECT_EQ(place_of(layout, "tensor", 8), (GroupPlace{4, 4}));
  EXPECT_EQ(place_of(layout, "context", 8), (GroupPlace{2, 2}));
  EXPECT_EQ(place_of(layout, "pipe", 8), (GroupPlace{8, 1}));
  EXPECT_EQ(place_of(layout, "data", 8), (GroupPlace{4, 1}));
  EXPECT_EQ(place_of(layout, "replicas", 8), (GroupPlace{8, 2}));
  EXPECT_EQ(place_of(layout, "data", 4096), (GroupPlace{4, 4}));
  Layout last = layout;
  last.order = {"tensor", "data", "context", "expert", "pipe"};
  EXPECT_EQ(place_of(last, "pipe", 8), (GroupPlace{8, 8}));
  EXPECT_EQ(place_of(last, "tensor", 8), (GroupPlace{4, 1}));
  // Folded experts lie along tensor, context and data.
  EXPECT_EQ(place_of({.data = 32, .expert = 16, .tensor = 2, .experts_folded = true}, "expert", 8),
            (GroupPlace{16, 8}));
}

TEST(Layout, StateIsThePapers) {
  // Rajbhandari et al., arXiv:1910.02054: 2 + 2 + 12; Megatron-LM with gradients of 32 bits: 18.
  EXPECT_EQ(state_bytes({}).total(), 16);
  EXPECT_EQ(state_bytes({.gradient_bytes = 4}).total(), 18);
  EXPECT_EQ(state_bytes({.masters = false}).total(), 16);
  EXPECT_EQ(state_bytes({.precision = Precision::kFloat32}).total(), 16);
  EXPECT_EQ(state_bytes({.precision = Precision::kFloat32, .optimizer = Optimizer::kSgd}).total(),
            8);
}

TEST(Layout, LayersAreDealtEvenly) {
  EXPECT_THAT(chunk_layers({.pipe = 4}, known_model("gpt2")), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(chunk_layers({.pipe = 5}, known_model("gpt2")), ElementsAre(3, 3, 2, 2, 2));
  EXPECT_THAT(chunk_layers({.pipe = 2, .cut = {5, 7}}, known_model("gpt2")), ElementsAre(5, 7));
}

TEST(Layout, RefusesInOneLine) {
  EXPECT_THAT(refusal({.data = 0}), HasSubstr("data is 0"));
  EXPECT_THAT(refusal({.data = 3, .global_batch = 4}), HasSubstr("give a multiple"));
  EXPECT_THAT(refusal({.tensor = 3}), HasSubstr("32 heads do not divide among 3"));
  EXPECT_THAT(refusal({.pipe = 64}), HasSubstr("64 chunks"));
  EXPECT_THAT(refusal({.expert = 2}), HasSubstr("no experts"));
  EXPECT_THAT(refusal({.expert = 3, .global_batch = 3}, "mixtral-8x7b"), HasSubstr("8 experts"));
  EXPECT_THAT(refusal({.zero = 4}), HasSubstr("zero is 4"));
  EXPECT_THAT(refusal({.pipe = 2, .schedule = "none"}), HasSubstr("1f1b"));
  EXPECT_THAT(refusal({.pipe = 2, .chunks = 2, .global_batch = 8}), HasSubstr("interleaved"));
  EXPECT_THAT(refusal({.pipe = 4, .chunks = 2, .schedule = "interleaved", .global_batch = 9}),
              HasSubstr("9 micro-batches"));
  EXPECT_THAT(refusal({.pipe = 2, .cut = {1, 2}}), HasSubstr("3 layers"));
  EXPECT_THAT(refusal({.context = 3}), HasSubstr("tokens"));
  EXPECT_THAT(refusal({.order = {"data"}}), HasSubstr("order"));
  EXPECT_EQ(refusal({.data = 2, .pipe = 4, .tensor = 8, .global_batch = 16}), "no exception");
}

TEST(Layout, TextNamesWhatDivides) {
  EXPECT_EQ(to_string({.data = 8, .pipe = 4, .tensor = 2, .zero = 1, .global_batch = 512}),
            "data=8 pipe=4 tensor=2, 1f1b, zero 1, micro-batch 1 x 64, kept");
  EXPECT_EQ(to_string(Layout{}), "one rank, micro-batch 1 x 1, kept");
  EXPECT_EQ(parse_activations("recomputed"), Activations::kRecomputed);
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_optimizer("adam"); }), HasSubstr("adamw"));
}

}  // namespace
}  // namespace lockstep::inline v0::plan::layout_test
