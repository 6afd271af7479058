#include "lockstep/pretrained/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::generation_config_test {
namespace {

using ::testing::HasSubstr;

GenerationConfig parse(const char* text) {
  return generation_config_from_json(text, "g.json");
}

// Llama 3's file, and the file that transformers writes if nothing was set.
TEST(GenerationConfig, IsReadAsTransformersWritesIt) {
  EXPECT_EQ(
      parse(R"({"bos_token_id": 128000, "do_sample": true, "eos_token_id": [128001, 128009],
                      "temperature": 0.6, "top_p": 0.9, "transformers_version": "4.42.3"})"),
      (GenerationConfig{.temperature = 0.6, .top_p = 0.9, .eos_token_ids = {128001, 128009}}));
  EXPECT_EQ(parse(R"({"_from_model_config": true, "eos_token_id": 2, "pad_token_id": null})"),
            (GenerationConfig{.eos_token_ids = {2}}));
  EXPECT_EQ(parse(R"({"do_sample": false, "temperature": 0.7, "top_k": 50, "max_new_tokens": 9})"),
            (GenerationConfig{.temperature = 0, .top_k = 50, .max_new_tokens = 9}));
}

TEST(GenerationConfig, NonsenseIsNamed) {
  const auto refused = [](const char* text) {
    return message_of<CheckpointError>([&] { parse(text); });
  };
  EXPECT_THAT(refused("{"), HasSubstr("g.json: is not JSON"));
  EXPECT_THAT(refused(R"({"temperature": -1})"), HasSubstr("g.json: temperature is -1; give"));
  EXPECT_THAT(refused(R"({"top_p": 0})"), HasSubstr("g.json: top_p is 0; give a number above 0"));
  EXPECT_THAT(refused(R"({"max_new_tokens": 0})"), HasSubstr("max_new_tokens is 0"));
  EXPECT_THAT(refused(R"({"eos_token_id": ["a"]})"), HasSubstr("eos_token_id is \"a\""));
}

}  // namespace
}  // namespace lockstep::inline v0::generation_config_test
