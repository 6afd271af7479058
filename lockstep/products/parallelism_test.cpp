#include "lockstep/products/parallelism.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0 {
namespace {

using ::testing::HasSubstr;

LmConfig small() {
  LmConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  return config;
}

std::string refusal(const std::string& mesh, int ranks,
                    const std::function<void(Parallelism&, LmConfig&)>& change = {}) {
  return message_of<InvalidArgument>([&] {
    Parallelism how = parse_parallelism(mesh);
    LmConfig config = small();
    if (change) change(how, config);
    check(how, config, ranks);
  });
}

TEST(Parallelism, IsResolvedToEveryAxis) {
  Parallelism how = parse_parallelism("tensor=2,data,pipe=2");
  const Parallelism whole = resolved(how, small(), 12);
  EXPECT_EQ(whole.axes,
            (std::vector<MeshAxis>{
                {"context", 1}, {"expert", 1}, {"tensor", 2}, {"data", 3}, {"pipe", 2}}));
  EXPECT_EQ(whole.micro_batches, 4);
  EXPECT_EQ(std::accumulate(whole.cut.begin(), whole.cut.end(), 0), 7);
  EXPECT_EQ(whole.cut.size(), 2u);
  EXPECT_EQ(resolved(whole, small(), 12), whole);
  EXPECT_EQ(resolved({}, small(), 1).micro_batches, 1);
  how.schedule = "interleaved";
  EXPECT_EQ(resolved(how, small(), 12).cut.size(), 4u);
}

TEST(Parallelism, WhatCannotBeIsOneLineThatSaysWhatToDo) {
  EXPECT_THAT(refusal("data=2,tensor=2", 8), HasSubstr("data 2 x tensor 2 = 4"));
  EXPECT_THAT(refusal("rows=2", 2), HasSubstr("there is no axis 'rows'; give sizes of data, pipe"));
  EXPECT_THAT(refusal("pipe=8", 8), HasSubstr("a pipeline of 8 chunks, and the model has 7 units"));
  EXPECT_THAT(refusal("pipe=4", 4, [](auto& how, auto&) { how.schedule = "zb-v"; }),
              HasSubstr("a pipeline of 8 chunks"));
  EXPECT_THAT(refusal("tensor=3", 3), HasSubstr("4 heads, which do not divide among 3 parts"));
  EXPECT_THAT(refusal("pipe=2", 2, [](auto& how, auto&) { how.schedule = "2f2b"; }),
              HasSubstr("2f2b"));
  EXPECT_THAT(refusal("data=2", 2, [](auto& how, auto&) { how.zero = 4; }),
              HasSubstr("zero is 4; give a stage from 0 to 3"));
  EXPECT_THAT(refusal("data=2", 2, [](auto& how, auto&) { how.micro_batches = -1; }),
              HasSubstr("-1 micro-batches"));
  EXPECT_THAT(refusal("data=2", 2, [](auto& how, auto&) { how.micro_batches = 65537; }),
              HasSubstr("65537 micro-batches; give 65536 at most"));
  const auto by_heads = [](auto& how, auto&) { how.context_way = ContextWay::kHeads; };
  EXPECT_THAT(refusal("context=8", 8, by_heads),
              HasSubstr("4 heads do not divide among 8 ranks along context"));
  EXPECT_THAT(refusal("context=4,tensor=2", 8, by_heads),
              HasSubstr("2 heads of each part do not divide among 4 ranks along context"));
  EXPECT_THAT(refusal("pipe=2", 2, [](auto& how, auto&) { how.cut = {3, 3}; }), HasSubstr("7"));
  EXPECT_THAT(refusal("pipe=2", 2, [](auto& how, auto&) { how.cut = {3, 2, 2}; }),
              HasSubstr("the cut has 3 chunks, and the pipeline 2"));
}

// The checked configuration is the one that runs.
TEST(Parallelism, AnOpenSizeIsCheckedAsItWillBe) {
  EXPECT_THAT(refusal("data=2,tensor", 6), HasSubstr("4 heads, which do not divide among 3 parts"));
  EXPECT_THAT(refusal("pipe", 8), HasSubstr("a pipeline of 8 chunks, and the model has 7 units"));
  EXPECT_THAT(refusal("expert,data=2", 4), HasSubstr("expert is 2, and the model has no experts"));
  EXPECT_THAT(refusal("data=4,tensor", 6), HasSubstr("6 ranks"));
  check(parse_parallelism("data=2,tensor"), small(), 8);
  check({}, small(), 3);  // all along data
}

// A head of many words is a stage, and the others have a layer each.
TEST(Parallelism, NoStageHasTheNormAlone) {
  LmConfig config = small();
  config.vocab_size = 32000;
  EXPECT_EQ(resolved(parse_parallelism("pipe=4"), config, 4).cut, (std::vector<int>{3, 1, 2, 1}));
}

TEST(Parallelism, ExpertsNeedAModelThatHasThem) {
  EXPECT_THAT(refusal("expert=2", 2), HasSubstr("expert is 2, and the model has no experts"));
  EXPECT_THAT(refusal("expert=3", 3, [](auto&, auto& config) { config.num_local_experts = 4; }),
              HasSubstr("4 experts do not divide among 3 ranks along expert"));
}

TEST(Parallelism, ProductsAreRefusedInOnePlace) {
  const auto tied = [](auto& how, auto& config) {
    how.zero = 2;
    config.tie_word_embeddings = true;
  };
  EXPECT_THAT(refusal("data=2,pipe=2", 4, tied),
              HasSubstr("zero 2 and tied embeddings do not go together"));
  Parallelism flat = parse_parallelism("data=2,tensor=2");
  LmConfig config = small();
  tied(flat, config);
  check(flat, config, 4);  // only the pipeline's ends are refused
  EXPECT_THAT(refusal("context=2", 2, [](auto&, auto& config) { config.attention_dropout = 0.1; }),
              HasSubstr("context and dropout of attention do not go together"));
  for (const RefusedProduct& product : refused_products()) EXPECT_FALSE(product.why.empty());
}

TEST(Parallelism, TheTableHasEveryRankOnce) {
  const MeshLayout layout({{"data", 2}, {"pipe", 1}, {"tensor", 2}}, 4);
  EXPECT_EQ(table_of(layout),
            "rank  data  pipe  tensor\n"
            "   0     0     0       0\n"
            "   1     0     0       1\n"
            "   2     1     0       0\n"
            "   3     1     0       1");
}

}  // namespace
}  // namespace lockstep::inline v0
