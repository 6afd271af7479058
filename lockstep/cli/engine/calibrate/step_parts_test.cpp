#include "lockstep/cli/engine/calibrate/step_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::engine::step_parts_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(StepParts, ModelsAreNamedWithTheirTokens) {
  const auto models = parse_measured_models("tiny:64,mini");
  ASSERT_EQ(models.size(), 2U);
  EXPECT_EQ(models[0].name, "tiny");
  EXPECT_EQ(models[0].tokens, 64);
  EXPECT_EQ(models[0].config.hidden_size, lm_preset("tiny").hidden_size);
  EXPECT_EQ(models[1].tokens, 128);
  EXPECT_TRUE(parse_measured_models("none").empty());
  const TestDirectory folder;
  folder.write("config.json", to_json(lm_preset("mini")));
  EXPECT_EQ(parse_measured_models(folder.path().string() + ":32")[0].config.hidden_size,
            lm_preset("mini").hidden_size);
}

TEST(StepParts, MistakesAreOneLine) {
  const auto refusal = [](const std::string& text) {
    return message_of<InvalidArgument>([&] { parse_measured_models(text); });
  };
  for (const char* text : {"tinny", "", "tiny,", "tiny:1", "tiny:x", "/nowhere:8"})
    EXPECT_THAT(refusal(text), StartsWith("--layers-of: ")) << text;
  EXPECT_THAT(refusal("tiny:1"), HasSubstr("give MODEL:TOKENS with 2 to 65536"));
}

// What a rank has of a layer that tensor divides.
TEST(StepParts, AModelIsMeasuredInThePartsOfItsRanks) {
  LmConfig config = lm_preset("tiny");
  config.vocab_size = 2048;
  const auto parts = divided_configs(config);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[2].num_attention_heads, config.num_attention_heads / 4);
  EXPECT_EQ(parts[2].head_width(), config.head_width());
  EXPECT_EQ(parts[2].intermediate_size, config.intermediate_size / 4);
  EXPECT_EQ(parts[2].vocab_size, 512);
  EXPECT_EQ(parts[2].hidden_size, config.hidden_size);
  config.num_attention_heads = 6;
  config.hidden_size = 192;
  EXPECT_EQ(divided_configs(config).size(), 2U) << "six heads do not divide by four";
  config.num_local_experts = 4;
  EXPECT_EQ(divided_configs(config).size(), 1U);
}

}  // namespace
}  // namespace lockstep::inline v0::engine::step_parts_test
