#include "lockstep/model/internal/bert_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>

namespace lockstep::internal {
namespace {

torch::nn::LayerNorm norm_of(const BertConfig& config) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({config.hidden_size}).eps(config.layer_norm_eps));
}

torch::nn::Linear square(const BertConfig& config) {
  return torch::nn::Linear(config.hidden_size, config.hidden_size);
}

at::Tensor activate(const at::Tensor& x, const std::string& name) {
  if (name == "relu") return at::relu(x);
  return at::gelu(x, name == "gelu" ? "none" : "tanh");
}

}  // namespace

BertOutput::BertOutput(const BertConfig& config, int64_t inputs)
    : dropout_(config.hidden_dropout_prob),
      dense_(register_module("dense", torch::nn::Linear(inputs, config.hidden_size))),
      norm_(register_module("LayerNorm", norm_of(config))) {}

at::Tensor BertOutput::forward(const at::Tensor& x, const at::Tensor& residual) {
  return norm_(at::dropout(dense_(x), dropout_, is_training()) + residual);
}

BertLayer::BertLayer(const BertConfig& config)
    : config_(config),
      query_(square(config)),
      key_(square(config)),
      value_(square(config)),
      intermediate_(config.hidden_size, config.intermediate_size),
      attention_output_(std::make_shared<BertOutput>(config, config.hidden_size)),
      output_(std::make_shared<BertOutput>(config, config.intermediate_size)) {
  // Modules that only give their parameters the names that transformers has.
  const auto self = std::make_shared<torch::nn::Module>();
  self->register_module("query", query_);
  self->register_module("key", key_);
  self->register_module("value", value_);
  const auto attention = std::make_shared<torch::nn::Module>();
  attention->register_module("self", self);
  attention->register_module("output", attention_output_);
  const auto intermediate = std::make_shared<torch::nn::Module>();
  intermediate->register_module("dense", intermediate_);
  register_module("attention", attention);
  register_module("intermediate", intermediate);
  register_module("output", output_);
}

AttentionOptions BertLayer::attention_options() const {
  return {.heads = config_.num_attention_heads,
          .dropout = is_training() ? config_.attention_probs_dropout_prob : 0};
}

at::Tensor BertLayer::forward(const at::Tensor& x, const BertBatch& batch, bool first_only) {
  at::Tensor asking = x;
  AttentionLayout layout = batch.layout;
  if (first_only) {
    asking = x.index_select(0, batch.first);
    for (int64_t s = 0; s < batch.sequences; ++s) {
      layout.spans[static_cast<size_t>(s)].query_begin = s;
      layout.spans[static_cast<size_t>(s)].queries = 1;
    }
  }
  const at::Tensor mixed =
      attention(query_(asking), key_(x), value_(x), layout, attention_options());
  const at::Tensor y = attention_output_->forward(mixed, asking);
  return output_->forward(activate(intermediate_(y), config_.hidden_act), y);
}

BertEmbeddings::BertEmbeddings(const BertConfig& config)
    : dropout_(config.hidden_dropout_prob),
      words_(register_module(
          "word_embeddings",
          torch::nn::Embedding(torch::nn::EmbeddingOptions(config.vocab_size, config.hidden_size)
                                   .padding_idx(config.pad_token_id)))),
      positions_(register_module(
          "position_embeddings",
          torch::nn::Embedding(config.max_position_embeddings, config.hidden_size))),
      types_(register_module("token_type_embeddings",
                             torch::nn::Embedding(config.type_vocab_size, config.hidden_size))),
      norm_(register_module("LayerNorm", norm_of(config))) {}

at::Tensor BertEmbeddings::forward(const BertBatch& batch) {
  at::Tensor x = words_(batch.ids);
  x = x + (batch.types.defined() ? types_(batch.types) : types_->weight[0]);
  if (batch.positions.defined()) {
    x = x + positions_(batch.positions);
  } else {
    const at::Tensor rows = positions_->weight.narrow(0, 0, batch.length);
    x = (x.view({batch.sequences, batch.length, -1}) + rows).view_as(x);
  }
  return at::dropout(norm_(x), dropout_, is_training());
}

BertEncoder::BertEncoder(const BertConfig& config)
    : embeddings_(register_module("embeddings", std::make_shared<BertEmbeddings>(config))),
      pooler_(square(config)) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    layers_->push_back(std::make_shared<BertLayer>(config));
  const auto encoder = std::make_shared<torch::nn::Module>();
  encoder->register_module("layer", layers_);
  register_module("encoder", encoder);
  const auto pooler = std::make_shared<torch::nn::Module>();
  pooler->register_module("dense", pooler_);
  register_module("pooler", pooler);
}

at::Tensor BertEncoder::forward(const BertBatch& batch) {
  at::Tensor x = embeddings_->forward(batch);
  const auto count = static_cast<int64_t>(layers_->size());
  for (int64_t i = 0; i < count; ++i)
    x = layers_->ptr<BertLayer>(static_cast<size_t>(i))->forward(x, batch, i + 1 == count);
  return pooler_(x).tanh();
}

}  // namespace lockstep::internal
