#include "lockstep/model/internal/bert_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/hooks/layer_hook.h"
#include "lockstep/kernels/dropout.h"
#include "lockstep/model/internal/bert_split.h"
#include "lockstep/model/internal/embedding_node.h"
#include "lockstep/model/internal/follow.h"
#include "lockstep/model/internal/products.h"
#include "lockstep/model/internal/undrawn.h"

namespace lockstep::internal {
namespace {

torch::nn::LayerNorm norm_of(const BertConfig& config) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({config.hidden_size}).eps(config.layer_norm_eps));
}

torch::nn::Linear square(const BertConfig& config, int64_t parts = 1) {
  return undrawn_linear(config.hidden_size, config.hidden_size / parts);
}

at::Tensor activate(const at::Tensor& x, const std::string& name) {
  if (name == "relu") return at::relu(x);
  return at::gelu(x, name == "gelu" ? "none" : "tanh");
}

kernels::Activation activation_of(const std::string& name) {
  if (name == "relu") return kernels::Activation::kRelu;
  return name == "gelu" ? kernels::Activation::kGelu : kernels::Activation::kGeluTanh;
}

// Nothing is drawn for nothing.
std::array<kernels::Dropout, 3> draw_dropouts(const std::array<double, 3>& probabilities) {
  std::array<kernels::Dropout, 3> result;
  if (probabilities == std::array<double, 3>{}) return result;
  const std::vector<uint64_t> seeds = draw_seeds(3);
  for (size_t i = 0; i < 3; ++i) result[i] = kernels::make_dropout(seeds[i], probabilities[i]);
  return result;
}

// What somebody else calls a unit with: the fused ones read memory by the pass's sizes.
void check_rows(const at::Tensor& rows, at::IntArrayRef expected) {
  if (!rows.defined() || rows.sizes() != expected)
    throw InvalidArgument("BertClassifier: a unit was given " +
                          (rows.defined() ? "[" + joined(rows.sizes()) + "]" : "nothing") +
                          " where its pass has [" + joined(expected) + "]");
}

bool any_hooked(std::initializer_list<at::Tensor> parameters) {
  return std::any_of(parameters.begin(), parameters.end(), hooks::is_hooked);
}

bool is_hooked(const LayerParameters& p) {
  return any_hooked({p.query_weight, p.key_weight, p.value_weight, p.mix_weight, p.mix_gamma,
                     p.inner_weight, p.outer_weight, p.gamma});
}

}  // namespace

BertOutput::BertOutput(const BertConfig& config, int64_t inputs)
    : dropout_(config.hidden_dropout_prob),
      dense_(register_module("dense", undrawn_linear(inputs, config.hidden_size))),
      norm_(register_module("LayerNorm", norm_of(config))) {}

void BertOutput::follow_children() {
  internal::follow_children(*this, dense_, norm_);
}

at::Tensor BertOutput::forward(const at::Tensor& x, const at::Tensor& residual) {
  return norm_(at::dropout(dense_(x), dropout_, is_training()) + residual);
}

BertLayer::BertLayer(const BertConfig& config, const BertSplit& split, bool first_only)
    : config_(config),
      split_(split),
      first_only_(first_only),
      self_(std::make_shared<torch::nn::Module>()),
      inner_(std::make_shared<torch::nn::Module>()),
      query_(square(config, split.parts)),
      key_(square(config, split.parts)),
      value_(square(config, split.parts)),
      intermediate_(undrawn_linear(config.hidden_size, config.intermediate_size / split.parts)),
      attention_output_(std::make_shared<BertOutput>(config, config.hidden_size / split.parts)),
      output_(std::make_shared<BertOutput>(config, config.intermediate_size / split.parts)) {
  self_->register_module("query", query_);
  self_->register_module("key", key_);
  self_->register_module("value", value_);
  const auto attention = std::make_shared<torch::nn::Module>();
  attention->register_module("self", self_);
  attention->register_module("output", attention_output_);
  inner_->register_module("dense", intermediate_);
  register_module("attention", attention);
  register_module("intermediate", inner_);
  register_module("output", output_);
}

void BertLayer::follow_children() {
  internal::follow_children(*self_, query_, key_, value_);
  internal::follow_children(*inner_, intermediate_);
  attention_output_->follow_children();
  output_->follow_children();
}

LayerParameters BertLayer::layer_parameters() const {
  const auto& mix = *attention_output_;
  const auto& outer = *output_;
  return {query_->weight,        query_->bias,        key_->weight,          key_->bias,
          value_->weight,        value_->bias,        mix.dense()->weight,   mix.dense()->bias,
          mix.norm()->weight,    mix.norm()->bias,    intermediate_->weight, intermediate_->bias,
          outer.dense()->weight, outer.dense()->bias, outer.norm()->weight,  outer.norm()->bias};
}

at::Tensor BertLayer::composed(const at::Tensor& x, const at::Tensor& asking,
                               const AttentionLayout& layout) {
  const AttentionOptions options{
      .heads = config_.num_attention_heads,
      .dropout = is_training() ? config_.attention_probs_dropout_prob : 0};
  const at::Tensor mixed = attention(query_(asking), key_(x), value_(x), layout, options);
  const at::Tensor y = attention_output_->forward(mixed, asking);
  return output_->forward(activate(intermediate_(y), config_.hidden_act), y);
}

at::Tensor BertLayer::compute(const at::Tensor& x, const lockstep::BertPass& pass) {
  return rows({x, {}}, *pass).exact;
}

LayerRows BertLayer::rows(const LayerRows& x, const BertPass& pass) {
  const BertBatch& batch = pass.batch;
  check_rows(x.exact, {batch.ids.size(0), config_.hidden_size});
  Arithmetic arithmetic = pass.arithmetic;
  follow_children();
  const LayerParameters parameters = layer_parameters();
  const bool hooked = is_hooked(parameters);
  if (hooked && split_.parts > 1)
    throw InvalidArgument(
        "BertClassifier: a Linear or LayerNorm of a divided layer has a hook; hook the layer");
  if (hooked) arithmetic = Arithmetic::kComposed;
  AttentionLayout layout = batch.layout;
  if (first_only_) layout.spans.resize(static_cast<size_t>(batch.sequences));
  for (int64_t s = 0; first_only_ && s < batch.sequences; ++s) {
    layout.spans[static_cast<size_t>(s)].query_begin = s;
    layout.spans[static_cast<size_t>(s)].queries = 1;
  }
  if (split_.parts > 1) {
    const at::Tensor rows = arithmetic == Arithmetic::kComposed ? x.exact : x.exact.to(at::kFloat);
    return {divided_layer(rows, parameters,
                          {.config = &config_,
                           .split = &split_,
                           .layout = &layout,
                           .first = first_only_ ? batch.first : at::Tensor(),
                           .arithmetic = arithmetic,
                           .training = is_training()}),
            {}};
  }
  if (arithmetic == Arithmetic::kComposed) {
    const at::Tensor asking = first_only_ ? x.exact.index_select(0, batch.first) : x.exact;
    return {composed(x.exact, asking, layout), {}};
  }
  const auto plan = std::make_shared<LayerPlan>();
  plan->layout = std::make_shared<const AttentionLayout>(std::move(layout));
  if (first_only_) plan->first = batch.first;
  plan->heads = config_.num_attention_heads;
  plan->epsilon = config_.layer_norm_eps;
  plan->activation = activation_of(config_.hidden_act);
  plan->in_bfloat16 = arithmetic == Arithmetic::kBFloat16;
  if (is_training()) {
    const double p = config_.hidden_dropout_prob;
    const auto dropouts = draw_dropouts({config_.attention_probs_dropout_prob, p, p});
    plan->weights_dropout = dropouts[0];
    plan->mix_dropout = dropouts[1];
    plan->outer_dropout = dropouts[2];
  }
  LayerRows rows = x;
  if (!rows.rounded.defined()) {  // the one before may be composed, or have hooks
    rows.exact = rows.exact.to(at::kFloat).contiguous();
    if (plan->in_bfloat16) rows.rounded = rows.exact.to(at::kBFloat16);
  }
  return layer(rows, parameters, plan);
}

BertEmbeddings::BertEmbeddings(const BertConfig& config, const BertSplit& split)
    : config_(config),
      split_(split),
      dropout_(config.hidden_dropout_prob),
      words_(register_module("word_embeddings",
                             undrawn_embedding(words_begin(config, split, split.part + 1) -
                                                   words_begin(config, split, split.part),
                                               config.hidden_size))),
      positions_(
          register_module("position_embeddings",
                          undrawn_embedding(config.max_position_embeddings, config.hidden_size))),
      types_(register_module("token_type_embeddings",
                             undrawn_embedding(config.type_vocab_size, config.hidden_size))),
      norm_(register_module("LayerNorm", norm_of(config))) {
  if (split.parts == 1) words_->options.padding_idx(config.pad_token_id);
}

void BertEmbeddings::follow_children() {
  internal::follow_children(*this, words_, positions_, types_, norm_);
}

Arithmetic BertEmbeddings::arithmetic() const {
  // A registered one: to() leaves a child that was replaced where it is.
  const auto registered = parameters();
  return registered.empty() ? Arithmetic::kComposed : arithmetic_for(registered.front());
}

at::Tensor BertEmbeddings::sum(const at::Tensor& words, const at::Tensor& ids,
                               const BertBatch& batch) {
  const at::Tensor types = batch.types.defined() ? batch.types : at::zeros_like(ids);
  const at::Tensor x = words + types_(types);
  if (batch.positions.defined()) return x + positions_(batch.positions);
  const at::Tensor rows = positions_(at::arange(batch.length, ids.options()));
  return (x.view({batch.sequences, batch.length, -1}) + rows).view_as(x);
}

at::Tensor BertEmbeddings::composed(const at::Tensor& ids, const BertBatch& batch) {
  return at::dropout(norm_(sum(words_(ids), ids, batch)), dropout_, is_training());
}

at::Tensor BertEmbeddings::compute(const at::Tensor& ids, const lockstep::BertPass& pass) {
  return rows(ids, *pass).exact;
}

LayerRows BertEmbeddings::rows(const at::Tensor& ids, const BertPass& pass) {
  const BertBatch& batch = pass.batch;
  check_rows(ids, batch.ids.sizes());
  follow_children();
  const Arithmetic arithmetic = pass.arithmetic;
  const bool hooked =
      any_hooked({words_->weight, positions_->weight, types_->weight, norm_->weight});
  if (split_.parts > 1) {
    if (hooked)
      throw InvalidArgument(
          "BertClassifier: an Embedding or LayerNorm of divided embeddings has a hook; hook "
          "bert.embeddings");
    const at::Tensor words = divided_words(ids, words_->weight, config_, split_);
    const PartMasks masks(split_, arithmetic, {is_training() ? dropout_ : 0, 0, 0});
    return {masks.rows(norm_(sum(words, ids, batch)), 0), {}};
  }
  if (arithmetic == Arithmetic::kComposed || hooked) return {composed(ids, batch), {}};
  const auto plan = std::make_shared<EmbeddingPlan>();
  plan->words = ids.contiguous();
  plan->types =
      batch.types.defined() ? batch.types.to(at::kLong).contiguous() : at::zeros_like(plan->words);
  plan->positions = batch.positions.defined() ? batch.positions.contiguous()
                                              : at::arange(batch.length).repeat({batch.sequences});
  plan->padding = words_->options.padding_idx().value_or(-1);
  plan->epsilon = norm_->options.eps();
  plan->in_bfloat16 = arithmetic == Arithmetic::kBFloat16;
  if (is_training()) plan->dropout = draw_dropouts({dropout_, 0, 0})[0];
  return embeddings(
      {words_->weight, positions_->weight, types_->weight, norm_->weight, norm_->bias}, plan);
}

BertPooler::BertPooler(const BertConfig& config)
    : dense_(register_module("dense", square(config))) {}

at::Tensor BertPooler::compute(const at::Tensor& x, const lockstep::BertPass& /*pass*/) {
  internal::follow_children(*this, dense_);
  return dense_(x).tanh();
}

BertEncoder::BertEncoder(const BertConfig& config, const BertSplit& split)
    : embeddings_(register_module("embeddings", std::make_shared<BertEmbeddings>(config, split))) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    layers_->push_back(std::make_shared<BertLayer>(
        config, split, /*first_only=*/i + 1 == config.num_hidden_layers));
  const auto encoder = std::make_shared<torch::nn::Module>();
  encoder->register_module("layer", layers_);
  register_module("encoder", encoder);
  pooler_ = register_module("pooler", std::make_shared<BertPooler>(config));
}

lockstep::BertPass BertEncoder::pass(const BertBatch& given) const {
  const Arithmetic arithmetic = embeddings_->arithmetic();
  return std::make_shared<const BertPass>(BertPass{
      .batch = arithmetic == Arithmetic::kBFloat16 ? with_whole_rows(given, kTileRows) : given,
      .arithmetic = arithmetic});
}

at::Tensor BertEncoder::forward(const lockstep::BertPass& pass) {
  const at::Tensor& ids = pass->batch.ids;
  LayerRows x = embeddings_->forward_hooks().empty()
                    ? embeddings_->rows(ids, *pass)
                    : LayerRows{embeddings_->forward(ids, pass), {}};
  for (size_t i = 0; i < layers_->size(); ++i) {
    const auto layer = layers_->ptr<BertLayer>(i);
    x = layer->forward_hooks().empty() ? layer->rows(x, *pass)
                                       : LayerRows{layer->forward(x.exact, pass), {}};
  }
  return pooler_->forward(x.exact, pass);
}

}  // namespace lockstep::internal
