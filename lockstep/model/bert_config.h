// BertConfig: the sizes of a BERT model, as in the config.json of Hugging Face's directories.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The defaults are those of BERT-base, by the names that config.json has.
struct BertConfig {
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  int64_t pad_token_id = 0;
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double classifier_dropout = -1;  // before the classifier; below 0: hidden_dropout_prob
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
  std::string hidden_act = "gelu";  // "gelu" (by erf), "gelu_new" (by tanh), "relu"
  std::vector<std::string> labels = {"LABEL_0", "LABEL_1"};  // id2label

  bool operator==(const BertConfig&) const = default;
};

// "base" (above) or "mini" (4 layers, 256 wide, 4 heads, 1024 inside). Throws InvalidArgument that
// lists the names.
LOCKSTEP_API BertConfig bert_preset(std::string_view name);
// The names of the presets.
LOCKSTEP_API const std::vector<std::string>& bert_preset_names();

// Throws InvalidArgument that names the field: a size below 1, a width that the heads do not
// divide, a dropout outside [0, 1), an unknown activation, a padding id outside the vocabulary.
LOCKSTEP_API void check(const BertConfig& config);

// How many parameters such a model has, or 9e15 where it would have more.
LOCKSTEP_API int64_t parameter_count(const BertConfig& config);

// config.json as transformers writes it for BertForSequenceClassification. Keys that say nothing of
// what is computed are passed over; another kind of model, relative positions, cross-attention or
// a value of the wrong type throw InvalidArgument of one line that begins with `source`.
LOCKSTEP_API BertConfig bert_config_from_json(std::string_view text, const std::string& source);
LOCKSTEP_API std::string to_json(const BertConfig& config);

}  // namespace lockstep::inline v0
