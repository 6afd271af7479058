#include "lockstep/plan/model/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::plan::model_shape_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// As the models' cards or the headers of their files of weights say.
TEST(ModelShape, ParametersAreThePublishedOnes) {
  const std::pair<const char*, int64_t> published[] = {
      {"llama2-7b", 6'738'415'616},
      {"llama2-13b", 13'015'864'320},
      {"llama2-70b", 68'976'648'192},
      {"llama3-8b", 8'030'261'248},
      {"llama3-70b", 70'553'706'496},
      {"llama3-405b", 405'853'388'800},
      {"mixtral-8x7b", 46'702'792'704},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"qwen3-235b-a22b", 235'093'634'560},
      {"gpt-oss-120b", 116'829'156'672},
      {"gpt2", 124'439'808},
      {"bert-base", 109'482'240},
      {"bert-large", 335'141'888},
      {"mpt-125m", 125'311'488},
      {"mpt-350m", 355'985'408},
      {"mpt-760m", 760'470'528},
      {"mpt-1b", 1'315'950'592},
      {"mpt-3b", 2'651'837'440},
      {"mpt-7b", 6'658'859'008},
      {"mpt-13b", 12'853'954'560},
      {"mpt-30b", 29'975'214'080},
      {"mpt-70b", 64'862'437'376},
  };
  for (const auto& [name, count] : published)
    EXPECT_EQ(parameter_count(known_model(name)), count) << name;
}

// Those whose cards give rounded counts, in billions: all, and active for a token.
TEST(ModelShape, RoundedCountsAreThePublishedOnes) {
  struct Row {
    const char* name;
    double all, active, within;
  };
  for (const auto& [name, all, active, within] :
       {Row{"deepseek-v3", 671.0, 37.6, 0.1}, Row{"kimi-k2", 1026, 32.9, 1},
        Row{"moonlight-16b", 15.96, 2.9, 0.1}, Row{"gpt-oss-20b", 20.91, 4.2, 0.1},
        Row{"nemotron-340b", 341.0, 341.0, 0.5}, Row{"qwen3-235b-a22b", 235.1, 22.2, 0.1}}) {
    const ModelShape model = known_model(name);
    EXPECT_NEAR(static_cast<double>(parameter_count(model)) / 1e9, all, within) << name;
    EXPECT_NEAR(static_cast<double>(active_parameter_count(model)) / 1e9, active, within) << name;
  }
}

// Narayanan et al., arXiv:2104.04473, table 1: billions of parameters.
TEST(ModelShape, GptIsCountedAsMegatronDoes) {
  struct Row {
    int64_t layers, hidden, heads;
    double billions;
  };
  for (const auto& [layers, hidden, heads, billions] :
       {Row{24, 2304, 24, 1.65}, Row{30, 3072, 32, 3.6}, Row{36, 4096, 32, 7.5},
        Row{40, 6144, 48, 18.4}, Row{48, 8192, 64, 39.1}, Row{60, 10240, 80, 76.1},
        Row{80, 12288, 96, 145.6}, Row{96, 16384, 128, 310.1}, Row{105, 20480, 128, 529.6},
        Row{128, 25600, 160, 1008.0}}) {
    const ModelShape model = gpt_model("gpt", layers, hidden, heads, 51200, 2048);
    EXPECT_NEAR(static_cast<double>(parameter_count(model)) / 1e9, billions, 0.06) << billions;
  }
}

TEST(ModelShape, PartsSumToTheWhole) {
  for (const std::string& name : known_models()) {
    const ModelShape model = known_model(name);
    EXPECT_NO_THROW(check(model)) << name;
    EXPECT_LE(active_parameter_count(model), parameter_count(model)) << name;
    if (model.has_experts()) continue;
    EXPECT_EQ(active_parameter_count(model), parameter_count(model)) << name;
  }
}

TEST(ModelShape, ReadsHuggingFacesFiles) {
  const ModelShape llama = read_model_shape(
      R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0})",
      "config.json");
  EXPECT_EQ(parameter_count(llama), 8'030'261'248);
  const ModelShape mixtral = read_model_shape(
      R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
          "num_experts_per_tok": 2})",
      "config.json");
  EXPECT_EQ(parameter_count(mixtral), 46'702'792'704);
  const ModelShape qwen = read_model_shape(
      R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
          "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
          "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "mlp_only_layers": []})",
      "config.json");
  EXPECT_EQ(parameter_count(qwen), 30'532'122'624);
  // Qwen2.5 0.5B's card: 494 million.
  const ModelShape qwen2 = read_model_shape(
      R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
          "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": true})",
      "config.json");
  EXPECT_EQ(parameter_count(qwen2), 494'032'768);
  const ModelShape deepseek = read_model_shape(
      R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
          "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "q_lora_rank": 1536,
          "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
          "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
          "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "topk_method": "noaux_tc"})",
      "config.json");
  EXPECT_EQ(parameter_count(deepseek), parameter_count(known_model("deepseek-v3")));
  EXPECT_EQ(parameter_count(read_model_shape(R"({"model_type": "gpt2"})", "config.json")),
            124'439'808);
  const ModelShape bert = read_model_shape(
      R"({"model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
          "num_attention_heads": 12, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2})",
      "config.json");
  EXPECT_EQ(parameter_count(bert), 109'482'240);
  // transformers' BertForMaskedLM has 109,514,298: no pooler, a transform and a bias of the vocabulary.
  const ModelShape masked = read_model_shape(
      R"({"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 768,
          "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 30522})",
      "config.json");
  EXPECT_EQ(parameter_count(masked), 109'514'298);
  // Pythia 160M's card: 162,322,944.
  const ModelShape pythia = read_model_shape(
      R"({"model_type": "gpt_neox", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
          "num_attention_heads": 12, "vocab_size": 50304})",
      "config.json");
  EXPECT_EQ(parameter_count(pythia), 162'322'944);
}

TEST(ModelShape, ReadsAFileOrAFolder) {
  const TestDirectory folder;
  folder.write("config.json", R"({"model_type": "gpt2"})");
  EXPECT_EQ(read_model_file(folder.path().string()).layers, 12);
  EXPECT_EQ(read_model_file((folder / "config.json").string()).hidden, 768);
  EXPECT_THAT(message_of<InvalidArgument>([&] { read_model_file((folder / "x.json").string()); }),
              HasSubstr("x.json"));
}

TEST(ModelShape, RefusesInOneLine) {
  const auto line = [](const char* text) {
    const std::string message =
        message_of<InvalidArgument>([&] { read_model_shape(text, "config.json"); });
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_THAT(message, StartsWith("config.json"));
    return message;
  };
  line("{");
  EXPECT_THAT(line("{}"), HasSubstr("model_type is missing"));
  EXPECT_THAT(line(R"({"model_type": "t5"})"), HasSubstr("llama"));
  EXPECT_THAT(line(R"({"model_type": "llama", "hidden_size": 64})"),
              HasSubstr("num_hidden_layers is missing"));
  EXPECT_THAT(line(R"({"model_type": "llama", "hidden_size": 65, "num_hidden_layers": 1,
                       "num_attention_heads": 4, "vocab_size": 9})"),
              HasSubstr("does not divide"));
  EXPECT_THAT(line(R"({"model_type": "llama", "hidden_size": "big"})"), HasSubstr("hidden_size"));
  EXPECT_THAT(message_of<InvalidArgument>([] { known_model("llama3-8"); }), HasSubstr("llama3-8b"));
}

}  // namespace
}  // namespace lockstep::inline v0::plan::model_shape_test
