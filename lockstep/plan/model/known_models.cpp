#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/known_names.h"
#include "lockstep/plan/model/model_shape.h"

namespace lockstep::inline v0::plan {
namespace {

ModelShape llama(std::string name, int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads,
                 int64_t ffn, int64_t vocab) {
  return {.name = std::move(name),
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = kv_heads,
          .ffn = ffn,
          .vocab = vocab};
}

// Nemotron: an MLP of two matrices with squared ReLU, four times as wide; no biases but the norms'.
ModelShape nemotron(std::string name, int64_t layers, int64_t hidden, int64_t heads,
                    int64_t kv_heads) {
  ModelShape model = llama(std::move(name), layers, hidden, heads, kv_heads, 4 * hidden, 256000);
  model.gated = false;
  model.layer_norm = true;
  return model;
}

ModelShape qwen3_moe(std::string name, int64_t layers, int64_t hidden, int64_t heads,
                     int64_t expert_ffn) {
  ModelShape model = llama(std::move(name), layers, hidden, heads, 4, 0, 151936);
  model.head_dim = 128;
  model.qk_norm = true;
  model.experts = 128;
  model.experts_per_token = 8;
  model.expert_ffn = expert_ffn;
  return model;
}

ModelShape deepseek(std::string name, int64_t layers, int64_t hidden, int64_t heads, int64_t ffn,
                    int64_t vocab) {
  ModelShape model = llama(std::move(name), layers, hidden, heads, 0, ffn, vocab);
  model.head_dim = 128;
  model.kv_rank = 512;
  model.query_rank = 1536;
  model.rotated_dim = 64;
  model.value_dim = 128;
  model.experts_per_token = 8;
  model.expert_ffn = 2048;
  model.shared_ffn = 2048;
  model.router_bias = true;
  model.dense_layers = 1;
  return model;
}

ModelShape gpt_oss(std::string name, int64_t layers, int64_t experts) {
  ModelShape model = llama(std::move(name), layers, 2880, 64, 8, 0, 201088);
  model.head_dim = 64;
  model.query_bias = model.output_bias = model.sinks = true;
  model.router_bias = model.expert_bias = true;
  model.experts = experts;
  model.experts_per_token = 4;
  model.expert_ffn = 2880;
  return model;
}

// MPT as llm-foundry trains it.
ModelShape mpt(std::string name, int64_t layers, int64_t hidden, int64_t heads) {
  ModelShape model = gpt_model(std::move(name), layers, hidden, heads, 50368, 2048);
  model.dropout = false;
  return model;
}

ModelShape bert(std::string name, int64_t layers, int64_t hidden, int64_t heads) {
  ModelShape model = gpt_model(std::move(name), layers, hidden, heads, 30522, 512);
  model.token_types = 2;
  model.causal = model.final_norm = model.head = false;
  model.embedding_norm = model.pooler = true;
  return model;
}

std::vector<ModelShape> make_table() {
  std::vector<ModelShape> all{
      llama("llama2-7b", 32, 4096, 32, 32, 11008, 32000),
      llama("llama2-13b", 40, 5120, 40, 40, 13824, 32000),
      llama("llama2-70b", 80, 8192, 64, 8, 28672, 32000),
      llama("llama3-8b", 32, 4096, 32, 8, 14336, 128256),
      llama("llama3-70b", 80, 8192, 64, 8, 28672, 128256),
      llama("llama3-405b", 126, 16384, 128, 8, 53248, 128256),
      nemotron("nemotron-8b", 32, 4096, 32, 32),
      nemotron("nemotron-22b", 40, 6144, 48, 48),
      nemotron("nemotron-340b", 96, 18432, 96, 8),
      qwen3_moe("qwen3-30b-a3b", 48, 2048, 32, 768),
      qwen3_moe("qwen3-235b-a22b", 94, 4096, 64, 1536),
      gpt_oss("gpt-oss-20b", 24, 32),
      gpt_oss("gpt-oss-120b", 36, 128),
      gpt_model("gpt2", 12, 768, 12, 50257, 1024),
      gpt_model("gpt3-5b", 24, 4096, 32, 51200, 2048),
      gpt_model("gpt3-20b", 44, 6144, 48, 51200, 2048),
      gpt_model("gpt3-175b", 96, 12288, 96, 51200, 2048),
      mpt("mpt-125m", 12, 768, 12),
      mpt("mpt-350m", 24, 1024, 16),
      mpt("mpt-760m", 24, 1536, 12),
      mpt("mpt-1b", 24, 2048, 16),
      mpt("mpt-3b", 32, 2560, 20),
      mpt("mpt-7b", 32, 4096, 32),
      mpt("mpt-13b", 40, 5120, 40),
      mpt("mpt-30b", 48, 7168, 56),
      mpt("mpt-70b", 80, 8192, 64),
      bert("bert-base", 12, 768, 12),
      bert("bert-large", 24, 1024, 16),
  };
  ModelShape mixtral = llama("mixtral-8x7b", 32, 4096, 32, 8, 0, 32000);
  mixtral.experts = 8;
  mixtral.experts_per_token = 2;
  mixtral.expert_ffn = 14336;
  all.push_back(mixtral);
  ModelShape v3 = deepseek("deepseek-v3", 61, 7168, 128, 18432, 129280);
  v3.experts = 256;
  v3.dense_layers = 3;
  all.push_back(v3);
  ModelShape kimi = deepseek("kimi-k2", 61, 7168, 64, 18432, 163840);
  kimi.experts = 384;
  all.push_back(kimi);
  ModelShape moonlight = deepseek("moonlight-16b", 27, 2048, 16, 11264, 163840);
  moonlight.experts = 64;
  moonlight.experts_per_token = 6;
  moonlight.query_rank = 0;
  moonlight.expert_ffn = 1408;
  moonlight.shared_ffn = 2 * 1408;
  all.push_back(moonlight);
  return all;
}

const std::vector<ModelShape>& table() {
  static const std::vector<ModelShape> all = make_table();
  return all;
}

}  // namespace

ModelShape gpt_model(std::string name, int64_t layers, int64_t hidden, int64_t heads, int64_t vocab,
                     int64_t positions) {
  ModelShape model = llama(std::move(name), layers, hidden, heads, heads, 4 * hidden, vocab);
  model.positions = positions;
  model.gated = false;
  model.dropout = true;
  model.tied = model.layer_norm = model.query_bias = model.output_bias = model.mlp_bias = true;
  return model;
}

const std::vector<std::string>& known_models() {
  static const std::vector<std::string> names = names_of(table());
  return names;
}

ModelShape known_model(std::string_view name) {
  for (const ModelShape& model : table())
    if (model.name == name) return model;
  throw InvalidArgument(unknown_name("model", name, known_models()) +
                        " Give a config.json, or one of: " + joined(known_models()));
}

}  // namespace lockstep::inline v0::plan
