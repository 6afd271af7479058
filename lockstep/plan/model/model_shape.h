// ModelShape: what a transformer is to a planner: its sizes, its parameters layer by layer, and what a
// token costs. Pure, but for read_model_file(); no libtorch.
//
//   const plan::ModelShape model = plan::read_model_file("config.json");
//   plan::parameter_count(model);  // 8030261248
//
// Counts are of trained parameters, exact for the models that are named in model_shape_test.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::plan {

struct LOCKSTEP_API ModelShape {
  std::string name = "model";  // in messages and tables
  int64_t layers = 32;
  int64_t hidden = 4096;
  int64_t heads = 32;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // channels of a head; 0: hidden / heads
  int64_t ffn = 11008;   // the inner width of a layer's MLP, where it has one that all tokens pass
  int64_t vocab = 32000;
  int64_t positions = 0;  // learned ones, which are parameters; 0: tokens are rotated
  int64_t token_types = 0;
  bool gated = true;            // the MLP has three matrices: gate, up, down; false: up and down
  bool tied = false;            // the head has the embeddings' matrix
  bool dropout = false;         // of attention's weights and of what each block adds
  bool causal = true;           // a token sees none after it
  bool layer_norm = false;      // norms have a bias beside the weight
  bool embedding_norm = false;  // a norm after the embeddings
  bool final_norm = true;       // a norm before the head
  bool qk_norm = false;         // of each head's queries and keys
  bool query_bias = false;      // of queries, keys and values
  bool output_bias = false;     // of attention's output
  bool sinks = false;           // a number for each head that takes part in its softmax (gpt_oss)
  bool mlp_bias = false;
  bool pooler = false;  // BERT's: a square matrix and its bias on the first token
  bool head = true;     // there is a head over the vocabulary
  bool head_transform =
      false;  // BERT's: a square matrix, a norm, a bias of the vocabulary before the head
  // Mixture of experts. 0 experts: none, and the fields below say nothing.
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  int64_t expert_ffn = 0;    // an expert's inner width
  int64_t shared_ffn = 0;    // of what every token passes beside its experts; 0: nothing
  bool shared_gate = false;  // a number for each token scales the shared one (Qwen2-MoE)
  bool router_bias = false;  // a number for each expert beside the router's matrix
  bool expert_bias = false;  // an expert's matrices have biases
  int64_t dense_layers = 0;  // the first so many layers have an MLP of width ffn and no experts
  // Latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values come from a vector of this length.
  // 0: none, and the fields below say nothing.
  int64_t kv_rank = 0;
  int64_t query_rank = 0;   // queries too; 0: from the hidden vector
  int64_t rotated_dim = 0;  // channels of a query or key that are rotated, shared by heads in keys
  int64_t value_dim = 0;    // channels of a head's value; head_dim are those that are not rotated

  // As many as heads unless given.
  int64_t key_value_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  // Channels of a head's queries and keys that are not rotated apart.
  int64_t head_width() const { return head_dim == 0 ? hidden / heads : head_dim; }
  // Whether any layer has experts; and whether this one has.
  bool has_experts() const { return experts > 0; }
  // The first dense_layers have none.
  bool layer_has_experts(int64_t layer) const { return has_experts() && layer >= dense_layers; }
  // Channels of the product of queries and keys, of one head; and of its values.
  int64_t score_width() const { return head_width() + (kv_rank > 0 ? rotated_dim : 0); }
  // Channels of a head's values.
  int64_t value_width() const { return kv_rank > 0 ? value_dim : head_width(); }

  bool operator==(const ModelShape&) const = default;
};

// Throws InvalidArgument in one line that begins with the model's name: a size below 1 or too large, heads
// that do not divide, more experts for a token than there are.
LOCKSTEP_API void check(const ModelShape& model);

// A config.json of Hugging Face (model_type llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, deepseek_v2,
// deepseek_v3, kimi_k2, gpt_oss, gpt2, gpt_neox, nemotron, bert), what Lockstep writes for its own language models
// included. `source` names the text in messages. Throws InvalidArgument in one line: not JSON, another
// model_type (with those that are known), a missing or senseless size.
LOCKSTEP_API ModelShape read_model_shape(std::string_view text, const std::string& source);
// The same of a file, or of the config.json of a folder. Throws InvalidArgument also where it cannot be read.
LOCKSTEP_API ModelShape read_model_file(const std::string& path);

// Models whose sizes are published, by name ("llama3-8b", "gpt3-175b", "deepseek-v3"): known_models()
// lists them. Throws InvalidArgument with the nearest name.
LOCKSTEP_API ModelShape known_model(std::string_view name);
LOCKSTEP_API const std::vector<std::string>& known_models();
// GPT as Megatron-LM counts it: an MLP four times as wide, biases everywhere, learned positions, tied head.
LOCKSTEP_API ModelShape gpt_model(std::string name, int64_t layers, int64_t hidden, int64_t heads,
                                  int64_t vocab, int64_t positions);

// Parameters of one layer.
struct LOCKSTEP_API LayerParameters {
  int64_t attention = 0;  // the matrices and biases of attention
  int64_t mlp = 0;        // of what every token passes: the MLP, or the shared expert
  int64_t router = 0;
  int64_t expert = 0;   // of one expert
  int64_t experts = 0;  // of all of them
  int64_t norms = 0;
  // All parameters of the layer.
  int64_t total() const { return attention + mlp + router + experts + norms; }
  // Those that multiply one token: of its experts alone.
  int64_t active(int64_t experts_per_token) const {
    return attention + mlp + router + expert * experts_per_token + norms;
  }
};
LOCKSTEP_API LayerParameters layer_parameters(const ModelShape& model, int64_t layer);
// Parameters of the embeddings of words, positions and token types, with their norm.
LOCKSTEP_API int64_t embedding_parameters(const ModelShape& model);
// Parameters behind the last layer: the norm, the pooler, and the head unless it is tied.
LOCKSTEP_API int64_t head_parameters(const ModelShape& model);
// Parameters of the whole model; and those that multiply or are looked up for one token.
LOCKSTEP_API int64_t parameter_count(const ModelShape& model);
LOCKSTEP_API int64_t active_parameter_count(const ModelShape& model);

}  // namespace lockstep::inline v0::plan
