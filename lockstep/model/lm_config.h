// LmConfig: the shape of a decoder-only language model, as transformers' LlamaConfig writes it into
// config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

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
  // Of the embeddings and of what each block adds; transformers' Llama has none, and reads over it.
  double hidden_dropout = 0;
  double initializer_range = 0.02;
  std::optional<int64_t> bos_token_id = 1;
  std::vector<int64_t> eos_token_ids = {2};  // any of them ends a text

  int64_t key_value_heads() const {
    return num_key_value_heads == 0 ? num_attention_heads : num_key_value_heads;
  }
  int64_t head_width() const {
    return head_dim == 0 ? hidden_size / num_attention_heads : head_dim;
  }

  bool operator==(const LmConfig&) const = default;
};

// "tiny" (4 layers of 128, 0.9 million parameters and the embeddings'), "mini" (6 of 384, 10.6),
// "small" (12 of 768, 85). Vocabulary, its special tokens and positions are the
// caller's.
const std::vector<std::string>& lm_preset_names();
// Throws InvalidArgument with the names.
LmConfig lm_preset(std::string_view name);

// Throws InvalidArgument that names the first field that makes no sense.
void check(const LmConfig& config);

// How many parameters such a model has.
int64_t parameter_count(const LmConfig& config);

// A config.json of transformers' Llama. Fields that are absent keep their default, foreign ones are
// read over. Throws InvalidArgument of one line that begins with `source`: not JSON, another kind of
// model, a value that makes no sense, or one that is not supported here (another activation, another
// scaling of positions).
LmConfig lm_config_from_json(std::string_view text, const std::string& source);
// With what transformers wants beside it: architectures, model_type.
std::string to_json(const LmConfig& config);

}  // namespace lockstep
