#include "lockstep/model/bert_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0 {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(std::string_view json) {
  try {
    bert_config_from_json(json, "config.json");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(BertConfig, SurvivesItsJson) {
  BertConfig config = bert_preset("mini");
  config.vocab_size = 21128;
  config.pad_token_id = 3;
  config.hidden_dropout_prob = 0.25;
  config.attention_probs_dropout_prob = 0.125;
  config.classifier_dropout = 0.5;
  config.hidden_act = "gelu_new";
  config.labels = {"其他", "喜好", "悲伤"};
  EXPECT_EQ(bert_config_from_json(to_json(config), "x"), config);
  EXPECT_EQ(bert_config_from_json(to_json(BertConfig()), "x"), BertConfig());
}

TEST(BertConfig, TakesTheDefaultsForWhatIsNotThere) {
  const BertConfig config = bert_config_from_json(
      R"({"model_type": "bert", "hidden_size": 128, "num_attention_heads": 2,
          "id2label": {"1": "no", "0": "yes"}, "transformers_version": "4.9", "use_cache": true})",
      "x");
  EXPECT_EQ(config.hidden_size, 128);
  EXPECT_EQ(config.num_hidden_layers, 12);
  EXPECT_EQ(config.labels, (std::vector<std::string>{"yes", "no"}));
}

TEST(BertConfig, PresetsAreNamed) {
  EXPECT_EQ(bert_preset("base"), BertConfig());
  EXPECT_EQ(bert_preset("mini").hidden_size, 256);
  for (const std::string& name : bert_preset_names()) check(bert_preset(name));
  EXPECT_THROW(bert_preset("large-ish"), InvalidArgument);
}

TEST(BertConfig, SaysWhatTheParserStumbledOver) {
  const auto line = [](const std::string& text) {
    return message_of<InvalidArgument>([&] { bert_config_from_json(text, "config.json"); });
  };
  EXPECT_NE(line("{").find("is not JSON (at byte 2)"), std::string::npos);
  EXPECT_NE(line(R"({"layer_norm_eps": 1e999})").find("the number 1e999 is out of range"),
            std::string::npos);
}

TEST(BertConfig, RefusesWithOneLine) {
  for (const char* json :
       {"", "[]", "{", "3", R"({"model_type": "gpt2"})", R"({"hidden_size": "wide"})",
        R"({"hidden_size": 0})", R"({"hidden_size": 100, "num_attention_heads": 3})",
        R"({"hidden_act": "swish"})", R"({"hidden_dropout_prob": 1.0})",
        R"({"hidden_dropout_prob": -0.1})", R"({"pad_token_id": 40000})",
        R"({"position_embedding_type": "relative_key"})", R"({"add_cross_attention": true})",
        R"({"num_hidden_layers": -1})", R"({"layer_norm_eps": []})"}) {
    const std::string line = refusal(json);
    EXPECT_THAT(line, StartsWith("config.json")) << json;
    EXPECT_EQ(line.find('\n'), std::string::npos) << json;
  }
  EXPECT_THAT(refusal(R"({"num_attention_heads": 5})"), HasSubstr("5 attention heads"));
}

}  // namespace
}  // namespace lockstep::inline v0
