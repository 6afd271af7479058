#include "lockstep/parallel/tensor/tensor_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <tuple>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/name_pattern.h"
#include "lockstep/model/transformer_lm.h"

namespace lockstep::inline v0::tensor_plan_test {
namespace {

using ::testing::HasSubstr;

LmConfig small(int64_t heads, int64_t key_value_heads, int64_t inner, bool tied) {
  LmConfig config;
  config.vocab_size = 53;
  config.hidden_size = 4 * heads;
  config.intermediate_size = inner;
  config.num_hidden_layers = 2;
  config.num_attention_heads = heads;
  config.num_key_value_heads = key_value_heads;
  config.max_position_embeddings = 16;
  config.tie_word_embeddings = tied;
  config.attention_bias = config.mlp_bias = tied;
  return config;
}

std::string line_of(const std::string& text) {
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  return text;
}

// How often the parts' slices together have each element, by counting.
std::vector<int> covered(const TensorPlan& plan, const std::string& name,
                         const std::vector<int64_t>& shape, int64_t parts) {
  const int64_t columns = shape.size() == 2 ? shape[1] : 1;
  std::vector<int> times(static_cast<size_t>(shape[0] * columns));
  for (int64_t part = 0; part < parts; ++part) {
    const PartSlice slice = plan.slice(name, shape, part, parts);
    for (int64_t row = 0; row < shape[0]; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t index = slice.dim == 0 ? row : column;
        if (slice.whole() || (index >= slice.begin && index < slice.end))
          ++times[static_cast<size_t>(row * columns + column)];
      }
    }
  }
  return times;
}

TEST(TensorPlan, EveryElementIsOnceOrOnAllParts) {
  for (int64_t parts = 1; parts <= 8; ++parts) {
    for (const bool tied : {false, true}) {
      const LmConfig config = small(2 * parts, parts, 3 * parts, tied);
      const TensorPlan plan = lm_tensor_plan(config);
      const NamedShapes shapes = lm_parameter_shapes(config);
      plan.check(shapes, parts);
      for (const auto& [name, shape] : shapes) {
        const bool whole = plan.slice(name, shape, 0, parts).whole();
        EXPECT_EQ(whole, name.find("norm") != std::string::npos || name.ends_with("o_proj.bias") ||
                             name.ends_with("down_proj.bias"))
            << name;
        for (const int times : covered(plan, name, shape, parts))
          ASSERT_EQ(times, whole ? parts : 1) << name << " of " << parts;
      }
    }
  }
}

// Fewer heads of keys than parts: neighbours share one; of those that have it the first counts.
TEST(TensorPlan, PartsShareHeadsOfKeys) {
  const std::string keys = "model.layers.1.self_attn.k_proj.";
  for (const auto& [heads, key_heads, parts] :
       {std::tuple{8, 2, 4}, {8, 2, 8}, {8, 4, 8}, {4, 1, 2}, {4, 1, 4}}) {
    const LmConfig config = small(heads, key_heads, 3 * parts, true);
    const TensorPlan plan = lm_tensor_plan(config);
    plan.check(lm_parameter_shapes(config), parts);
    const std::vector<int64_t> shape{4 * key_heads, 4 * heads};
    for (const int times : covered(plan, keys + "weight", shape, parts))
      ASSERT_EQ(times, parts / key_heads);
    for (const int times : covered(plan, keys + "bias", {4 * key_heads}, parts))
      ASSERT_EQ(times, parts / key_heads);
    int64_t counted = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const PartSlice slice = plan.slice(keys + "weight", shape, part, parts);
      EXPECT_EQ(slice.whole(), key_heads == 1);
      if (slice.whole()) continue;
      // The head that this part's queries look at.
      EXPECT_EQ(slice.begin, part * heads / parts / (heads / key_heads) * 4);
      EXPECT_EQ(slice.end - slice.begin, 4);
      counted += slice.repeated ? 0 : 1;
    }
    EXPECT_EQ(counted, key_heads == 1 ? 0 : key_heads);
  }
}

// Slices of heads begin and end between heads, of queries where those of their keys do.
TEST(TensorPlan, HeadsStayWholeAndWithTheirKeys) {
  const LmConfig config = small(12, 6, 24, false);
  const TensorPlan plan = lm_tensor_plan(config);
  const std::string attention = "model.layers.1.self_attn.";
  for (const int64_t parts : {1, 2, 3, 6}) {
    for (int64_t part = 0; part < parts; ++part) {
      const PartSlice queries = plan.slice(attention + "q_proj.weight", {48, 48}, part, parts);
      const PartSlice keys = plan.slice(attention + "k_proj.weight", {24, 48}, part, parts);
      const PartSlice out = plan.slice(attention + "o_proj.weight", {48, 48}, part, parts);
      EXPECT_EQ(keys.begin % 4, 0);
      EXPECT_EQ(queries.begin, 2 * keys.begin);
      EXPECT_EQ(queries.end, 2 * keys.end);
      EXPECT_EQ(out, (PartSlice{1, queries.begin, queries.end}));
    }
  }
}

TEST(TensorPlan, VocabulariesNeedNotDivide) {
  const TensorPlan plan({{"words", TensorStyle::kVocabulary}});
  int64_t next = 0;
  for (int64_t part = 0; part < 7; ++part) {
    const PartSlice slice = plan.slice("words.weight", {50257, 8}, part, 7);
    EXPECT_EQ(slice.begin, next);
    next = slice.end;
    EXPECT_NEAR(static_cast<double>(slice.end - slice.begin), 50257.0 / 7, 1);
    EXPECT_EQ(shape_of(slice, {50257, 8}), (std::vector<int64_t>{slice.end - slice.begin, 8}));
  }
  EXPECT_EQ(next, 50257);
}

TEST(TensorPlan, ShapesAreTheModels) {
  for (const bool tied : {false, true}) {
    LmConfig config = small(4, 2, 12, tied);
    config.head_dim = 6;
    TransformerLm lm(config);
    NamedShapes expected;
    for (const auto& item : lm->named_parameters())
      expected.emplace_back(item.key(), item.value().sizes().vec());
    EXPECT_EQ(lm_parameter_shapes(config), expected);
  }
}

// Each expert is whole on one part, evenly; all else on all.
TEST(TensorPlan, ExpertsAreOnePartsEach) {
  LmConfig config = small(4, 4, 12, false);
  EXPECT_THAT(message_of<InvalidArgument>([&] { lm_expert_plan(config); }),
              HasSubstr("has no experts"));
  config.num_local_experts = 4;
  const TensorPlan plan = lm_expert_plan(config);
  const NamedShapes shapes = lm_parameter_shapes(config);
  plan.check(shapes, 2);
  for (const auto& [name, shape] : shapes) {
    const int64_t expert = expert_of(name);
    for (int64_t part = 0; part < 2; ++part) {
      const PartSlice slice = plan.slice(name, shape, part, 2);
      EXPECT_EQ(slice.whole(), expert < 0) << name;
      EXPECT_EQ(slice.empty(), expert >= 0 && expert / 2 != part) << name;
      if (expert < 0 || expert / 2 != part) continue;
      EXPECT_EQ(shape_of(slice, shape), shape) << name;
    }
  }
  EXPECT_THAT(message_of<InvalidArgument>([&] { plan.check(shapes, 3); }),
              HasSubstr("has 4 experts, which do not divide among 3 parts"));
}

TEST(TensorPlan, TheFirstRuleCounts) {
  const TensorPlan plan(
      {{"layers.0.up", TensorStyle::kWhole}, {"layers.*.up", TensorStyle::kColumn}});
  EXPECT_TRUE(plan.slice("layers.0.up.weight", {4, 4}, 0, 2).whole());
  EXPECT_EQ(plan.slice("layers.1.up.weight", {4, 4}, 1, 2), (PartSlice{0, 2, 4}));
  EXPECT_TRUE(plan.slice("layers.1.up.inner.weight", {4, 4}, 1, 2).whole());
  EXPECT_TRUE(plan.slice("scale", {4}, 1, 2).whole());
}

TEST(TensorPlan, WhatDoesNotDivideIsRefusedByName) {
  const auto says = [](const LmConfig& config, int64_t parts) {
    return line_of(message_of<InvalidArgument>(
        [&] { lm_tensor_plan(config).check(lm_parameter_shapes(config), parts); }));
  };
  EXPECT_THAT(says(small(6, 6, 12, false), 4),
              HasSubstr("'model.layers.0.self_attn.q_proj.weight' has 6 heads, which do not divide "
                        "among 4 parts"));
  // Fewer heads of keys than parts, which they do not divide.
  EXPECT_THAT(says(small(12, 4, 12, false), 6),
              HasSubstr("'model.layers.0.self_attn.k_proj.weight' has 4 heads, which do not divide "
                        "among 6 parts"));
  EXPECT_THAT(says(small(4, 4, 13, false), 2),
              HasSubstr("'model.layers.0.mlp.gate_proj.weight' has 13 rows"));
  LmConfig few = small(8, 8, 16, false);
  few.vocab_size = 7;
  EXPECT_THAT(says(few, 8), HasSubstr("'model.embed_tokens.weight' has 7 rows"));
  const auto checked = [](const TensorPlan& plan, const NamedShapes& shapes) {
    return line_of(message_of<InvalidArgument>([&] { plan.check(shapes, 2); }));
  };
  const NamedShapes shapes{{"a.0.up.weight", {4, 3}}, {"conv.weight", {4, 4, 3, 3}}};
  EXPECT_THAT(checked(TensorPlan({{"a.*.down", TensorStyle::kRow}}), shapes),
              HasSubstr("'a.*.down' (row) means no module"));
  EXPECT_THAT(checked(TensorPlan({{"a.*.up", TensorStyle::kRow}}), shapes),
              HasSubstr("'a.0.up.weight' has 3 columns"));
  EXPECT_THAT(checked(TensorPlan({{"conv", TensorStyle::kColumn}}), shapes),
              HasSubstr("'conv.weight' has 4 dims"));
  EXPECT_THAT(checked(TensorPlan({{"a.*.up", TensorStyle::kHeads, 3}}), shapes),
              HasSubstr("4 rows, which are not 3 heads"));
  EXPECT_THAT(message_of<InvalidArgument>([] { TensorPlan({{"a", TensorStyle::kHeads}}); }),
              HasSubstr("'a' is divided by heads, of which it has 0"));
  EXPECT_THAT(message_of<InvalidArgument>([] { TensorPlan().slice("a", {1}, 2, 2); }),
              HasSubstr("part 2 of 2"));
}

}  // namespace
}  // namespace lockstep::inline v0::tensor_plan_test
