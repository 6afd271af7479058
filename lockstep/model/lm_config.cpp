#include "lockstep/model/lm_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/core/text.h"
#include "lockstep/model/internal/config_checks.h"

namespace lockstep::inline v0 {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMostExperts = 65536;

// Of the rotation: in "rope_parameters", or spread over the file as before transformers 5.
void read_rope(const JsonObject& file, LmConfig& config) {
  config.rope_theta = file.number_or(config.rope_theta, "rope_theta", 0, JsonObject::kAnyNumber);
  const char* const key = file.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const JsonObject rope = file.object_or_empty(key);
  config.rope_theta = rope.number_or(config.rope_theta, "rope_theta", 0, JsonObject::kAnyNumber);
  RopeScaling& scaling = config.rope_scaling;
  const char* const type = rope.has("rope_type") ? "rope_type" : "type";
  scaling.type = rope.text(type, scaling.type);
  if (scaling.type != "default" && scaling.type != "linear" && scaling.type != "llama3")
    rope.refuse(type, "default, linear or llama3, which are known here");
  if (rope.number_or(1, "partial_rotary_factor", 0, 1) != 1)
    rope.say("partial_rotary_factor", "is set; heads are rotated whole here");
  if (scaling.type == "default") return;
  scaling.factor = rope.number("factor", 1e-6, JsonObject::kAnyNumber, "a number above 0");
  if (scaling.type != "llama3") return;
  scaling.low_freq_factor =
      rope.number("low_freq_factor", 1e-6, JsonObject::kAnyNumber, "a number above 0");
  scaling.high_freq_factor =
      rope.number("high_freq_factor", 1e-6, JsonObject::kAnyNumber, "a number above 0");
  scaling.original_max_position_embeddings =
      rope.whole_or(config.max_position_embeddings, "original_max_position_embeddings", 1);
}

std::vector<int64_t> read_ends(const JsonObject& file, const std::vector<int64_t>& fallback) {
  constexpr const char* kKey = "eos_token_id";
  if (!file.has(kKey)) return file.members().contains(kKey) ? std::vector<int64_t>() : fallback;
  if (!file.find(kKey)->is_array()) return {file.whole(kKey, 0)};
  std::vector<int64_t> ids;
  for (const json& id : file.list(kKey))
    ids.push_back(whole_of(id, file.path(kKey), refuse_as<InvalidArgument>, 0));
  return ids;
}

// What MixtralConfig and Qwen2MoeConfig have where a file is silent.
LmConfig defaults_of(const std::string& type) {
  LmConfig config;
  if (type == "mixtral") {
    config.intermediate_size = 14336;
    config.num_key_value_heads = 8;
    config.max_position_embeddings = 4096 * 32;
    config.rms_norm_eps = 1e-5;
    config.rope_theta = 1e6;
    config.num_local_experts = 8;
    config.router_aux_loss_coef = 0.001;
  } else if (type == "qwen2_moe") {
    config.vocab_size = 151936;
    config.hidden_size = 2048;
    config.intermediate_size = 1408;
    config.num_hidden_layers = 24;
    config.num_attention_heads = 16;
    config.num_key_value_heads = 16;
    config.max_position_embeddings = 32768;
    config.num_local_experts = 60;
    config.num_experts_per_tok = 4;
    config.router_aux_loss_coef = 0.001;
    config.shared_expert_intermediate_size = 5632;
    config.bos_token_id.reset();
    config.eos_token_ids.clear();
  }
  return config;
}

// Of the experts; and what these two kinds may have and models here do not.
void read_experts(const JsonObject& file, const std::string& type, LmConfig& config) {
  internal::read_field(file, "num_experts_per_tok", config.num_experts_per_tok);
  internal::read_field(file, "router_aux_loss_coef", config.router_aux_loss_coef);
  internal::read_field(file, "router_z_loss_coef", config.router_z_loss_coef);
  internal::read_field(file, "capacity_factor", config.capacity_factor);
  config.router_aux_loss_by_layer =
      file.flag("router_aux_loss_by_layer", config.router_aux_loss_by_layer);
  if (type == "mixtral") {
    internal::read_field(file, "num_local_experts", config.num_local_experts);
    if (config.num_local_experts < 1) file.refuse("num_local_experts", "1 or more");
    if (file.has("sliding_window"))
      file.refuse("sliding_window", "null: tokens see all before them here");
    if (file.number_or(0, "router_jitter_noise", 0, JsonObject::kAnyNumber) != 0)
      file.refuse("router_jitter_noise", "0: routers are not disturbed here");
    return;
  }
  internal::read_field(file, "num_experts", config.num_local_experts);
  internal::read_field(file, "moe_intermediate_size", config.intermediate_size);
  internal::read_field(file, "shared_expert_intermediate_size",
                       config.shared_expert_intermediate_size);
  if (config.num_local_experts < 1) file.refuse("num_experts", "1 or more");
  if (!file.flag("norm_topk_prob", false))
    file.refuse("norm_topk_prob", "true: a token's experts have shares that sum to 1 here");
  if (file.flag("qkv_bias", true)) file.refuse("qkv_bias", "false, which is known here");
  if (file.flag("use_sliding_window", false))
    file.refuse("use_sliding_window", "false: tokens see all before them here");
  if (file.whole_or(1, "decoder_sparse_step", -JsonObject::kMostWhole) != 1)
    file.refuse("decoder_sparse_step", "1: every layer has experts here");
  if (file.has("mlp_only_layers") && !file.list("mlp_only_layers").empty())
    file.refuse("mlp_only_layers", "empty: every layer has experts here");
  if (config.shared_expert_intermediate_size == 0)
    file.refuse("shared_expert_intermediate_size", "above 0");
}

void write_experts(const LmConfig& config, ordered_json& object) {
  const bool shared = config.shared_expert_intermediate_size > 0;
  object["architectures"] = {shared ? "Qwen2MoeForCausalLM" : "MixtralForCausalLM"};
  object["model_type"] = shared ? "qwen2_moe" : "mixtral";
  object.erase("attention_bias");
  object.erase("mlp_bias");
  object[shared ? "num_experts" : "num_local_experts"] = config.num_local_experts;
  object["num_experts_per_tok"] = config.num_experts_per_tok;
  object["output_router_logits"] = config.router_aux_loss_coef > 0;
  object["router_aux_loss_coef"] = config.router_aux_loss_coef;
  // transformers reads over these.
  object["router_aux_loss_by_layer"] = config.router_aux_loss_by_layer;
  object["router_z_loss_coef"] = config.router_z_loss_coef;
  object["capacity_factor"] = config.capacity_factor;
  if (!shared) {
    object["sliding_window"] = nullptr;
    return;
  }
  object["moe_intermediate_size"] = config.intermediate_size;
  object["shared_expert_intermediate_size"] = config.shared_expert_intermediate_size;
  object["norm_topk_prob"] = true;
  object["qkv_bias"] = false;
  object["use_sliding_window"] = false;
  object["decoder_sparse_step"] = 1;
  object["mlp_only_layers"] = json::array();
}

[[noreturn]] void refuse_experts(const std::string& what) {
  throw InvalidArgument("LmConfig: " + what);
}

void check_experts(const LmConfig& config) {
  if (config.num_local_experts < 0 || config.num_local_experts > kMostExperts)
    refuse_experts("num_local_experts is " + std::to_string(config.num_local_experts) +
                   "; give 0 for none, up to " + std::to_string(kMostExperts));
  if (!config.has_experts()) return;
  if (config.num_experts_per_tok < 1 || config.num_experts_per_tok > config.num_local_experts)
    refuse_experts("num_experts_per_tok is " + std::to_string(config.num_experts_per_tok) +
                   "; give 1 to the number of experts, " +
                   std::to_string(config.num_local_experts));
  const auto not_negative = [](const char* name, double value) {
    if (!(value >= 0 && value <= 1e6))
      refuse_experts(std::string(name) + " is " + std::to_string(value) + "; give 0 or more");
  };
  not_negative("router_aux_loss_coef", config.router_aux_loss_coef);
  not_negative("router_z_loss_coef", config.router_z_loss_coef);
  not_negative("capacity_factor", config.capacity_factor);
  if (config.shared_expert_intermediate_size != 0)
    internal::check_size("LmConfig", "shared_expert_intermediate_size",
                         config.shared_expert_intermediate_size);
  if (config.attention_bias || config.mlp_bias)
    refuse_experts(
        "attention_bias and mlp_bias do not go with experts, which transformers opens without "
        "them");
}

struct Preset {
  const char* name;
  int64_t layers, width, heads, inner;
};
// The inner width is 8 / 3 of the width, in whole 64s: SwiGLU has three matrices where others have two.
constexpr Preset kPresets[] = {
    {"tiny", 4, 128, 4, 384}, {"mini", 6, 384, 6, 1024}, {"small", 12, 768, 12, 2048}};

}  // namespace

const std::vector<std::string>& lm_preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Preset& preset : kPresets) all.emplace_back(preset.name);
    return all;
  }();
  return names;
}

LmConfig lm_preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (name != preset.name) continue;
    LmConfig config;
    config.hidden_size = preset.width;
    config.intermediate_size = preset.inner;
    config.num_hidden_layers = preset.layers;
    config.num_attention_heads = preset.heads;
    config.tie_word_embeddings = true;
    config.bos_token_id.reset();  // the vocabulary's
    config.eos_token_ids.clear();
    return config;
  }
  throw InvalidArgument("there is no language model of size '" + std::string(name) + "'; choose " +
                        joined(lm_preset_names(), " or ") + ", or give a directory");
}

ExpertNames expert_names(const LmConfig& config) {
  if (config.shared_expert_intermediate_size > 0)
    return {"mlp", "gate_proj", "up_proj", "down_proj"};
  return {"block_sparse_moe", "w1", "w3", "w2"};
}

void check(const LmConfig& config) {
  internal::check_size("LmConfig", "vocab_size", config.vocab_size);
  internal::check_size("LmConfig", "hidden_size", config.hidden_size);
  internal::check_size("LmConfig", "intermediate_size", config.intermediate_size);
  internal::check_size("LmConfig", "num_hidden_layers", config.num_hidden_layers);
  internal::check_size("LmConfig", "num_attention_heads", config.num_attention_heads);
  internal::check_size("LmConfig", "num_key_value_heads", config.key_value_heads());
  internal::check_size("LmConfig", "max_position_embeddings", config.max_position_embeddings);
  // Also where head_dim is given: transformers opens no other file.
  if (config.hidden_size % config.num_attention_heads != 0)
    throw InvalidArgument("LmConfig: hidden_size " + std::to_string(config.hidden_size) +
                          " does not divide by " + std::to_string(config.num_attention_heads) +
                          " attention heads");
  internal::check_size("LmConfig", "head_dim", config.head_width());
  if (config.head_width() % 2 != 0)
    throw InvalidArgument("LmConfig: head_dim is " + std::to_string(config.head_width()) +
                          "; it must be even, since columns are rotated in pairs");
  if (config.num_attention_heads % config.key_value_heads() != 0)
    throw InvalidArgument("LmConfig: " + std::to_string(config.num_attention_heads) +
                          " attention heads do not divide by num_key_value_heads " +
                          std::to_string(config.key_value_heads()));
  if (!(config.rms_norm_eps > 0) || !(config.rope_theta > 0))
    throw InvalidArgument("LmConfig: rms_norm_eps and rope_theta must be above 0");
  if (!(config.initializer_range >= 0 && config.initializer_range <= 1))
    throw InvalidArgument("LmConfig: initializer_range must be in [0, 1]");
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.type != "default" && scaling.type != "linear" && scaling.type != "llama3")
    throw InvalidArgument("LmConfig: rope_scaling.type is " + shown(json(scaling.type)) +
                          "; give default, linear or llama3");
  if (!(scaling.factor > 0) || scaling.original_max_position_embeddings < 1)
    throw InvalidArgument("LmConfig: factor and original_max_position_embeddings must be above 0");
  if (scaling.type == "llama3" && !(scaling.high_freq_factor > scaling.low_freq_factor))
    throw InvalidArgument("LmConfig: high_freq_factor must be above low_freq_factor");
  internal::check_probability("LmConfig", "attention_dropout", config.attention_dropout);
  internal::check_probability("LmConfig", "hidden_dropout", config.hidden_dropout);
  check_experts(config);
  if (config.bos_token_id &&
      (*config.bos_token_id < 0 || *config.bos_token_id >= config.vocab_size))
    throw InvalidArgument("LmConfig: bos_token_id " + std::to_string(*config.bos_token_id) +
                          " is outside the vocabulary of " + std::to_string(config.vocab_size));
  for (const int64_t id : config.eos_token_ids) {
    if (id < 0 || id >= config.vocab_size)
      throw InvalidArgument("LmConfig: eos_token_id " + std::to_string(id) +
                            " is outside the vocabulary of " + std::to_string(config.vocab_size));
  }
}

int64_t parameter_count(const LmConfig& config) {
  // Doubles have every count exactly that there is memory for, and do not overflow where a file's sizes are absurd.
  const auto width = static_cast<double>(config.hidden_size),
             inner = static_cast<double>(config.intermediate_size),
             head = static_cast<double>(config.head_width()),
             queries = static_cast<double>(config.num_attention_heads) * head,
             keys = static_cast<double>(config.key_value_heads()) * head,
             experts = static_cast<double>(config.num_local_experts),
             shared = static_cast<double>(config.shared_expert_intermediate_size);
  double layer = width * (2 * queries + 2 * keys) + 2 * width;
  if (config.has_experts()) {
    layer += experts * (width + 3 * width * inner);
    if (shared > 0) layer += width + 3 * width * shared;
  } else {
    layer += 3 * width * inner;
  }
  if (config.attention_bias) layer += queries + 2 * keys + width;
  if (config.mlp_bias) layer += 2 * inner + width;
  return internal::counted(static_cast<double>(config.num_hidden_layers) * layer + width +
                           (config.tie_word_embeddings ? 1 : 2) *
                               static_cast<double>(config.vocab_size) * width);
}

bool is_lm_type(std::string_view type) {
  return type == "llama" || type == "mixtral" || type == "qwen2_moe";
}

LmConfig lm_config_from_json(std::string_view text, const std::string& source) {
  const json parsed = parse_json(text, source, refuse_as<InvalidArgument>);
  const JsonObject file(parsed, source, refuse_as<InvalidArgument>);
  const std::string type = file.text("model_type", "llama");
  if (!is_lm_type(type)) file.refuse("model_type", "a config.json of Llama, Mixtral or Qwen2-MoE");
  if (file.text("hidden_act", "silu") != "silu")
    file.refuse("hidden_act", "\"silu\", which is known here");
  LmConfig config = defaults_of(type);
  internal::read_field(file, "vocab_size", config.vocab_size);
  internal::read_field(file, "hidden_size", config.hidden_size);
  // Qwen2-MoE's is that of layers without experts.
  if (type != "qwen2_moe")
    internal::read_field(file, "intermediate_size", config.intermediate_size);
  internal::read_field(file, "num_hidden_layers", config.num_hidden_layers);
  internal::read_field(file, "num_attention_heads", config.num_attention_heads);
  internal::read_field(file, "num_key_value_heads", config.num_key_value_heads);
  internal::read_field(file, "head_dim", config.head_dim);
  internal::read_field(file, "max_position_embeddings", config.max_position_embeddings);
  internal::read_field(file, "rms_norm_eps", config.rms_norm_eps);
  internal::read_field(file, "attention_dropout", config.attention_dropout);
  internal::read_field(file, "hidden_dropout", config.hidden_dropout);
  internal::read_field(file, "initializer_range", config.initializer_range);
  config.tie_word_embeddings = file.flag("tie_word_embeddings", config.tie_word_embeddings);
  if (type == "llama") {
    config.attention_bias = file.flag("attention_bias", config.attention_bias);
    config.mlp_bias = file.flag("mlp_bias", config.mlp_bias);
  } else {
    read_experts(file, type, config);
  }
  if (parsed.contains("bos_token_id")) config.bos_token_id.reset();
  if (file.has("bos_token_id")) config.bos_token_id = file.whole("bos_token_id", 0);
  config.eos_token_ids = read_ends(file, config.eos_token_ids);
  read_rope(file, config);
  try {
    check(config);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(source + ": " + error.what());
  }
  return config;
}

std::string to_json(const LmConfig& config) {
  ordered_json rope{{"rope_type", config.rope_scaling.type}, {"rope_theta", config.rope_theta}};
  if (config.rope_scaling.type != "default") rope["factor"] = config.rope_scaling.factor;
  if (config.rope_scaling.type == "llama3") {
    rope["low_freq_factor"] = config.rope_scaling.low_freq_factor;
    rope["high_freq_factor"] = config.rope_scaling.high_freq_factor;
    rope["original_max_position_embeddings"] = config.rope_scaling.original_max_position_embeddings;
  }
  ordered_json object{
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.key_value_heads()},
      {"head_dim", config.head_width()},
      {"max_position_embeddings", config.max_position_embeddings},
      {"hidden_act", "silu"},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_parameters", rope},
      // Before transformers 5 it stands here.
      {"rope_theta", config.rope_theta},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"attention_bias", config.attention_bias},
      {"mlp_bias", config.mlp_bias},
      {"attention_dropout", config.attention_dropout},
      {"hidden_dropout", config.hidden_dropout},
      {"initializer_range", config.initializer_range},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"dtype", "float32"},
  };
  if (config.rope_scaling.type != "default") {
    ordered_json scaling = rope;
    scaling.erase("rope_theta");
    object["rope_scaling"] = scaling;
  }
  if (config.bos_token_id) object["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_ids.size() == 1) object["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) object["eos_token_id"] = config.eos_token_ids;
  if (config.has_experts()) write_experts(config, object);
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::inline v0
