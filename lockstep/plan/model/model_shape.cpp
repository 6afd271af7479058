#include "lockstep/plan/model/model_shape.h"

#include <filesystem>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::plan {
namespace {

constexpr int64_t kMostSize = 100'000'000;
constexpr int64_t kMostLayers = 100'000;

// What most kinds write alike.
void read_sizes(const JsonObject& file, ModelShape& model) {
  model.hidden = file.whole("hidden_size", 1, kMostSize);
  model.layers = file.whole("num_hidden_layers", 1, kMostLayers);
  model.heads = file.whole("num_attention_heads", 1, kMostSize);
  model.kv_heads = file.whole_or(0, "num_key_value_heads", 0, kMostSize);
  model.head_dim = file.whole_or(0, "head_dim", 0, kMostSize);
  model.ffn = file.whole_or(4 * model.hidden, "intermediate_size", 1, kMostSize);
  model.vocab = file.whole("vocab_size", 1, kMostSize);
  model.tied = file.flag("tie_word_embeddings", false);
}

void read_llama(const JsonObject& file, ModelShape& model) {
  read_sizes(file, model);
  model.query_bias = model.output_bias = file.flag("attention_bias", false);
  model.mlp_bias = file.flag("mlp_bias", false);
}

void read_mixtral(const JsonObject& file, ModelShape& model) {
  read_llama(file, model);
  model.experts = file.whole_or(8, "num_local_experts", 1, kMostSize);
  model.experts_per_token = file.whole_or(2, "num_experts_per_tok", 1, model.experts);
  model.expert_ffn = model.ffn;
}

void read_qwen2(const JsonObject& file, ModelShape& model) {
  read_llama(file, model);
  model.query_bias = true;
  model.output_bias = false;
}

void read_qwen2_moe(const JsonObject& file, ModelShape& model) {
  read_llama(file, model);
  model.query_bias = file.flag("qkv_bias", true);
  model.output_bias = false;
  model.experts = file.whole_or(60, "num_experts", 1, kMostSize);
  model.experts_per_token = file.whole_or(4, "num_experts_per_tok", 1, model.experts);
  model.expert_ffn = file.whole_or(1408, "moe_intermediate_size", 1, kMostSize);
  model.shared_ffn = file.whole_or(5632, "shared_expert_intermediate_size", 0, kMostSize);
  model.shared_gate = model.shared_ffn > 0;
}

void read_qwen3(const JsonObject& file, ModelShape& model) {
  read_llama(file, model);
  model.head_dim = file.whole_or(128, "head_dim", 1, kMostSize);
  model.qk_norm = true;
}

void read_qwen3_moe(const JsonObject& file, ModelShape& model) {
  read_qwen3(file, model);
  if (file.whole_or(1, "decoder_sparse_step", 1) != 1)
    file.refuse("decoder_sparse_step", "1: every layer has experts here");
  if (file.has("mlp_only_layers") && !file.list("mlp_only_layers").empty())
    file.refuse("mlp_only_layers", "empty: every layer has experts here");
  model.experts = file.whole_or(128, "num_experts", 1, kMostSize);
  model.experts_per_token = file.whole_or(8, "num_experts_per_tok", 1, model.experts);
  model.expert_ffn = file.whole_or(768, "moe_intermediate_size", 1, kMostSize);
}

void read_deepseek(const JsonObject& file, ModelShape& model) {
  read_llama(file, model);
  model.kv_heads = 0;
  model.kv_rank = file.whole("kv_lora_rank", 1, kMostSize);
  model.query_rank = file.whole_or(0, "q_lora_rank", 0, kMostSize);
  model.head_dim = file.whole("qk_nope_head_dim", 1, kMostSize);
  model.rotated_dim = file.whole("qk_rope_head_dim", 1, kMostSize);
  model.value_dim = file.whole("v_head_dim", 1, kMostSize);
  model.experts = file.whole_or(0, "n_routed_experts", 0, kMostSize);
  if (model.experts == 0) return;
  model.experts_per_token = file.whole("num_experts_per_tok", 1, model.experts);
  model.expert_ffn = file.whole("moe_intermediate_size", 1, kMostSize);
  model.shared_ffn = model.expert_ffn * file.whole_or(0, "n_shared_experts", 0, kMostSize);
  model.dense_layers = file.whole_or(0, "first_k_dense_replace", 0, kMostLayers);
  model.router_bias = file.text("topk_method", "") == "noaux_tc";
}

void read_gpt_oss(const JsonObject& file, ModelShape& model) {
  read_mixtral(file, model);
  model.query_bias = model.output_bias = file.flag("attention_bias", true);
  model.sinks = model.router_bias = model.expert_bias = true;
}

void read_gpt2(const JsonObject& file, ModelShape& model) {
  model = gpt_model(model.name, file.whole_or(12, "n_layer", 1, kMostLayers),
                    file.whole_or(768, "n_embd", 1, kMostSize),
                    file.whole_or(12, "n_head", 1, kMostSize),
                    file.whole_or(50257, "vocab_size", 1, kMostSize),
                    file.whole_or(1024, "n_positions", 1, kMostSize));
  model.ffn = file.whole_or(model.ffn, "n_inner", 1, kMostSize);
  model.tied = file.flag("tie_word_embeddings", true);
}

void read_gpt_neox(const JsonObject& file, ModelShape& model) {
  read_sizes(file, model);
  model.kv_heads = 0;
  model.gated = false;
  model.layer_norm = model.mlp_bias = true;
  model.query_bias = model.output_bias = file.flag("attention_bias", true);
}

void read_nemotron(const JsonObject& file, ModelShape& model) {
  read_llama(file, model);
  model.gated = false;
  model.layer_norm = true;
}

// GPT with the names that other kinds have.
void read_gpt(const JsonObject& file, ModelShape& model) {
  read_sizes(file, model);
  const ModelShape sizes = model;
  model = gpt_model(model.name, sizes.layers, sizes.hidden, sizes.heads, sizes.vocab,
                    file.whole_or(0, "max_position_embeddings", 0, kMostSize));
  model.kv_heads = sizes.kv_heads;
  model.head_dim = sizes.head_dim;
  model.ffn = sizes.ffn;
  model.tied = file.flag("tie_word_embeddings", true);
}

void read_bert(const JsonObject& file, ModelShape& model) {
  read_sizes(file, model);
  const ModelShape sizes = model;
  model = gpt_model(model.name, sizes.layers, sizes.hidden, sizes.heads, sizes.vocab,
                    file.whole_or(512, "max_position_embeddings", 1, kMostSize));
  model.ffn = sizes.ffn;
  model.token_types = file.whole_or(2, "type_vocab_size", 0, kMostSize);
  model.causal = model.final_norm = false;
  model.embedding_norm = true;
  std::string first;
  if (file.has("architectures") && !file.list("architectures").empty())
    first = text_of(file.list("architectures").front(), file.path("architectures"),
                    refuse_as<InvalidArgument>);
  model.head = model.head_transform = first == "BertForMaskedLM" || first == "BertForPreTraining";
  model.pooler = first != "BertForMaskedLM";
}

struct Kind {
  const char* name;
  void (*read)(const JsonObject&, ModelShape&);
};
constexpr Kind kKinds[] = {
    {"llama", read_llama},         {"mistral", read_llama},        {"mixtral", read_mixtral},
    {"qwen2", read_qwen2},         {"qwen2_moe", read_qwen2_moe},  {"qwen3", read_qwen3},
    {"qwen3_moe", read_qwen3_moe}, {"deepseek_v2", read_deepseek}, {"deepseek_v3", read_deepseek},
    {"kimi_k2", read_deepseek},    {"gpt_oss", read_gpt_oss},      {"gpt2", read_gpt2},
    {"gpt_neox", read_gpt_neox},   {"nemotron", read_nemotron},    {"gpt", read_gpt},
    {"bert", read_bert},
};

std::string kinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return joined(names);
}

[[noreturn]] void refuse(const ModelShape& model, const std::string& what) {
  throw InvalidArgument(model.name + ": " + what);
}

void within(const ModelShape& model, const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  refuse(model, std::string(name) + " is " + std::to_string(value) + "; give " +
                    std::to_string(least) + " to " + std::to_string(most));
}

}  // namespace

void check(const ModelShape& m) {
  within(m, "layers", m.layers, 1, kMostLayers);
  within(m, "hidden", m.hidden, 1, kMostSize);
  within(m, "heads", m.heads, 1, m.hidden);
  within(m, "kv_heads", m.key_value_heads(), 1, m.heads);
  within(m, "vocab", m.vocab, 1, kMostSize);
  within(m, "positions", m.positions, 0, kMostSize);
  if (m.head_dim == 0 && m.hidden % m.heads != 0)
    refuse(m, "hidden " + std::to_string(m.hidden) + " does not divide among " +
                  std::to_string(m.heads) + " heads; give a divisor, or head_dim");
  if (m.heads % m.key_value_heads() != 0)
    refuse(m, std::to_string(m.heads) + " heads do not divide among " +
                  std::to_string(m.key_value_heads()) + " of keys and values; give a divisor");
  within(m, "dense_layers", m.dense_layers, 0, m.layers);
  if (!m.has_experts() || m.dense_layers > 0) within(m, "ffn", m.ffn, 1, kMostSize);
  if (m.has_experts()) {
    within(m, "experts", m.experts, 1, kMostSize);
    within(m, "experts_per_token", m.experts_per_token, 1, m.experts);
    within(m, "expert_ffn", m.expert_ffn, 1, kMostSize);
    within(m, "shared_ffn", m.shared_ffn, 0, kMostSize);
  }
  if (m.kv_rank > 0) {
    within(m, "value_dim", m.value_dim, 1, kMostSize);
    within(m, "rotated_dim", m.rotated_dim, 0, kMostSize);
    within(m, "query_rank", m.query_rank, 0, kMostSize);
  }
}

ModelShape read_model_shape(std::string_view text, const std::string& source) {
  const auto json = parse_json(text, source, refuse_as<InvalidArgument>);
  const JsonObject file(json, source, refuse_as<InvalidArgument>);
  const std::string type = file.text("model_type");
  for (const Kind& kind : kKinds) {
    if (type != kind.name) continue;
    ModelShape model{.name = source};
    kind.read(file, model);
    check(model);
    return model;
  }
  file.refuse("model_type", "one of " + kinds());
}

ModelShape read_model_file(const std::string& path) {
  std::filesystem::path file = path;
  if (std::error_code none; std::filesystem::is_directory(file, none)) file /= "config.json";
  return read_model_shape(read_named_file(file), path_from_here(file));
}

}  // namespace lockstep::inline v0::plan
