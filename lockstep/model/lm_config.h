// LmConfig: the shape of a decoder-only language model, as transformers' LlamaConfig writes it into
// config.json; with experts (num_local_experts) as MixtralConfig does, with a shared expert as Qwen2MoeConfig.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// How positions beyond those of training are rotated. Fields beside the type are of "linear" (factor)
// and "llama3" (all; Llama 3.1's model card) only.
struct RopeScaling {
  std::string type = "default";  // "default", "linear", "llama3"
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;

  bool operator==(const RopeScaling&) const = default;
};

// The defaults are LlamaConfig's (Llama 1, 7B).
struct LmConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 0;  // 0: as many as num_attention_heads
  int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads; even
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;  // the last product has the embeddings' weight
  bool attention_bias = false;
  bool mlp_bias = false;
  double attention_dropout = 0;  // of attention's weights
  // Dropout of embeddings and of what each block adds; transformers' Llama has none and ignores it.
  double hidden_dropout = 0;
  double initializer_range = 0.02;
  // Mixture of experts (Mixtral, Jiang et al., arXiv:2401.04088): in each layer a router sends a token to some of
  // these, each of which is an MLP of intermediate_size. 0: one MLP, without a router; the fields below then say
  // nothing. No biases and no mlp_bias go with them.
  int64_t num_local_experts = 0;
  int64_t num_experts_per_tok =
      2;  // their softmax shares are scaled so that they sum to 1; 1 has share 1
  // Coefficient of the load-balancing loss in training (Switch, Fedus et al., arXiv:2101.03961): experts * sum
  // over experts of (choices / tokens) * (mean share). It is counted over all layers' tokens together, as by
  // transformers' load_balancing_loss_func; transformers adds it where output_router_logits is set.
  double router_aux_loss_coef = 0;
  // Or layer by layer, as Switch has it, the mean over the layers: what a pipeline's stage can count.
  bool router_aux_loss_by_layer = false;
  // Coefficient of z-loss: mean logsumexp(logits)^2 over layers and tokens (ST-MoE, Zoph et al., arXiv:2202.08906).
  double router_z_loss_coef = 0;
  // 0: every token is seen by all that it chose (MegaBlocks, Gale et al., arXiv:2211.15841). Else an expert takes
  // capacity_factor * tokens * num_experts_per_tok / num_local_experts of a pass's tokens, rounded up, and leaves
  // the later ones out, first choices before second ones (GShard, Lepikhin et al., arXiv:2006.16668).
  double capacity_factor = 0;
  // An MLP of this width for every token, times sigmoid(x shared_expert_gate^T), beside the experts. 0: none. Above
  // it, parameters have Qwen2-MoE's names in place of Mixtral's.
  int64_t shared_expert_intermediate_size = 0;
  std::optional<int64_t> bos_token_id = 1;
  std::vector<int64_t> eos_token_ids = {2};  // any of them ends a text

  // As many as heads unless given.
  int64_t key_value_heads() const {
    return num_key_value_heads == 0 ? num_attention_heads : num_key_value_heads;
  }
  // Channels of a head.
  int64_t head_width() const {
    return head_dim == 0 ? hidden_size / num_attention_heads : head_dim;
  }

  bool has_experts() const { return num_local_experts > 0; }  // the model has routers

  bool operator==(const LmConfig&) const = default;
};

// The names that an expert's three matrices have in each layer, and where: "block_sparse_moe.experts.3.w1.weight".
struct ExpertNames {
  const char* block;  // in a layer
  const char *gate, *up, *down;
};
// The names for a model of this configuration.
LOCKSTEP_API ExpertNames expert_names(const LmConfig& config);

// "tiny" (4 layers of 128, 0.9 million parameters and the embeddings'), "mini" (6 of 384, 10.6),
// "small" (12 of 768, 85). Vocabulary, its special tokens and positions are the
// caller's.
LOCKSTEP_API const std::vector<std::string>& lm_preset_names();
// Throws InvalidArgument with the names.
LOCKSTEP_API LmConfig lm_preset(std::string_view name);

// Throws InvalidArgument that names the first field that makes no sense.
LOCKSTEP_API void check(const LmConfig& config);

// How many parameters such a model has, or 9e15 where it would have more.
LOCKSTEP_API int64_t parameter_count(const LmConfig& config);

// Whether lm_config_from_json() reads a config.json of that model_type.
LOCKSTEP_API bool is_lm_type(std::string_view type);

// A config.json of transformers' Llama, Mixtral or Qwen2-MoE (where every layer has experts and no attention a
// bias). Fields that are absent keep their default, foreign ones are
// read over. Throws InvalidArgument of one line that begins with `source`: not JSON, another kind of
// model, a value that makes no sense, or one that is not supported here (another activation, another
// scaling of positions).
LOCKSTEP_API LmConfig lm_config_from_json(std::string_view text, const std::string& source);
// With what transformers wants beside it: architectures, model_type.
LOCKSTEP_API std::string to_json(const LmConfig& config);

}  // namespace lockstep::inline v0
