#include "lockstep/model/internal/bert_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/hooks/layer_hook.h"
#include "lockstep/kernels/dropout.h"
#include "lockstep/model/internal/follow.h"
#include "lockstep/model/internal/lm_nodes.h"
#include "lockstep/model/internal/products.h"
#include "lockstep/model/internal/undrawn.h"

namespace lockstep::inline v0::internal {
namespace {

torch::nn::LayerNorm norm_of(const BertConfig& config) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({config.hidden_size}).eps(config.layer_norm_eps));
}

torch::nn::Linear square(const BertConfig& config) {
  return undrawn_linear(config.hidden_size, config.hidden_size);
}

kernels::Activation activation_of(const std::string& name) {
  if (name == "relu") return kernels::Activation::kRelu;
  return name == "gelu" ? kernels::Activation::kGelu : kernels::Activation::kGeluTanh;
}

// Nothing is drawn for nothing.
std::array<Mask, 3> draw_masks(const BertPass& pass, const at::Tensor& x,
                               const std::array<double, 3>& probabilities) {
  std::array<Mask, 3> masks;
  for (size_t i = 0; i < 3; ++i) masks[i].probability = probabilities[i];
  if (probabilities == std::array<double, 3>{} || !x.is_cpu()) return masks;
  std::vector<uint64_t> seeds = draw_seeds(3);
  if (pass.part) pass.part->agree(at::from_blob(seeds.data(), {3}, at::kLong));
  for (size_t i = 0; i < 3; ++i) masks[i].rows = kernels::make_dropout(seeds[i], probabilities[i]);
  return masks;
}

at::Tensor dropped(const at::Tensor& x, const Mask& mask) {
  if (mask.probability == 0) return x;
  return x.is_cpu() ? drop_rows(x, mask.rows, 0) : at::dropout(x, mask.probability, true);
}

at::ScalarType type_of(Arithmetic how) {
  return how == Arithmetic::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

// Rows as the nodes take them: what gave them may be composed, or have hooks.
LayerRows completed(LayerRows rows, Arithmetic how) {
  if (rows.typed.defined()) return rows;
  if (how != Arithmetic::kComposed) rows.exact = rows.exact.to(at::kFloat).contiguous();
  rows.typed = how == Arithmetic::kBFloat16 ? rows.exact.to(at::kBFloat16) : rows.exact;
  return rows;
}

// What others give: nodes read memory by the pass's sizes.
void check_rows(const at::Tensor& rows, at::IntArrayRef expected,
                const char* who = "a unit was given") {
  if (!rows.defined() || rows.sizes() != expected)
    throw InvalidArgument("BertClassifier: " + std::string(who) +
                          (rows.defined() ? " [" + joined(rows.sizes()) + "]" : " nothing") +
                          " where its pass has [" + joined(expected) + "]");
}

Affine affine(torch::nn::Linear& linear, const LayerRows& x, Arithmetic how) {
  const bool calls = how == Arithmetic::kComposed || hooks::is_hooked(linear->weight);
  if (!calls) return {x.typed, linear->weight, linear->bias};
  const at::Tensor y = linear(x.exact);
  check_rows(y, {x.exact.size(0), y.size(-1)}, "a Linear gave");
  return {how == Arithmetic::kComposed ? y : y.to(type_of(how))};
}

at::Tensor active(const Affine& x, const std::string& name, Arithmetic how) {
  if (how != Arithmetic::kComposed)
    return activation_node(x, activation_of(name), how == Arithmetic::kBFloat16);
  if (name == "relu") return at::relu(x.x);
  return at::gelu(x.x, name == "gelu" ? "none" : "tanh");
}

// The part that the first divided layer of a module is called as; null where all are whole.
std::shared_ptr<const hooks::LayerPart> part_of(const torch::nn::Module& module) {
  for (const auto& each : module.modules())
    for (const auto& hook : hooks::hooks_of(*each))
      if (hook->part() != nullptr) return {hook, hook->part()};
  return nullptr;
}

// Fused nodes read tables by rows. On a device the host would have to wait.
void check_index(const at::Tensor& index, const at::Tensor& table, const char* name) {
  if (!index.is_cpu() || hooks::is_hooked(table) || index.numel() == 0) return;
  const auto [least, most] = index.aminmax();
  const auto low = least.item<int64_t>(), high = most.item<int64_t>();
  if (low < 0 || high >= table.size(0))
    throw InvalidArgument("BertClassifier: " + std::string(name) + " " +
                          std::to_string(low < 0 ? low : high) +
                          " is outside of the table's 0 to " + std::to_string(table.size(0) - 1));
}

}  // namespace

BertOutput::BertOutput(const BertConfig& config, int64_t inputs)
    : dense_(register_module("dense", undrawn_linear(inputs, config.hidden_size))),
      norm_(register_module("LayerNorm", norm_of(config))) {}

LayerRows BertOutput::rows(const LayerRows& x, const at::Tensor& residual, const Mask& mask,
                           Arithmetic how) {
  follow_children(*this, dense_, norm_);
  if (how != Arithmetic::kComposed && !hooks::is_hooked(norm_->weight))
    return norm_node(affine(dense_, x, how), residual, norm_->weight, norm_->bias,
                     {.epsilon = norm_->options.eps(),
                      .before = mask.rows,
                      .in_bfloat16 = how == Arithmetic::kBFloat16});
  return completed({norm_(dropped(dense_(x.exact), mask) + residual), {}}, how);
}

BertLayer::BertLayer(const BertConfig& config, bool first_only)
    : config_(config),
      first_only_(first_only),
      self_(std::make_shared<torch::nn::Module>()),
      inner_(std::make_shared<torch::nn::Module>()),
      query_(square(config)),
      key_(square(config)),
      value_(square(config)),
      intermediate_(undrawn_linear(config.hidden_size, config.intermediate_size)),
      attention_output_(std::make_shared<BertOutput>(config, config.hidden_size)),
      output_(std::make_shared<BertOutput>(config, config.intermediate_size)) {
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

at::Tensor BertLayer::compute(const at::Tensor& x, const lockstep::BertPass& pass) {
  return rows({x, {}}, *pass).exact;
}

at::Tensor BertLayer::attend(const LayerRows& asking, const LayerRows& x, const BertPass& pass,
                             const Mask& mask) {
  const Arithmetic how = pass.arithmetic;
  std::array<Affine, 3> qkv{affine(query_, asking, how), affine(key_, x, how),
                            affine(value_, x, how)};
  AttentionLayout layout = pass.batch.layout;
  if (first_only_) layout.spans.resize(static_cast<size_t>(pass.batch.sequences));
  for (int64_t s = 0; first_only_ && s < pass.batch.sequences; ++s) {
    layout.spans[static_cast<size_t>(s)].query_begin = s;
    layout.spans[static_cast<size_t>(s)].queries = 1;
  }
  const int64_t width = config_.hidden_size / config_.num_attention_heads,
                columns = qkv[0].columns(), heads = columns / width;
  if (heads == 0 || columns % width != 0 || qkv[1].columns() != columns ||
      qkv[2].columns() != columns)
    throw InvalidArgument(
        "BertClassifier: queries, keys and values have " +
        joined(std::vector<int64_t>{columns, qkv[1].columns(), qkv[2].columns()}) +
        " columns; they must have the same heads, of " + std::to_string(width));
  // The registered module computes, which may be another than query_.
  const auto part = part_of(*self_->children()[0]);
  // A mask is that of the whole layer's heads.
  if (!part && pass.part && columns < config_.hidden_size && mask.probability > 0)
    throw InvalidArgument(
        "BertClassifier: a part of the heads asks, and the module in the query's place does not say "
        "which; replace the query by a torch::nn::Linear that the plan divides, or set "
        "attention_probs_dropout_prob to 0");
  const int64_t first_head = part ? part->first_column() / width : 0;
  const at::ScalarType type = qkv[0].x.scalar_type();
  if (how == Arithmetic::kComposed && (!qkv[0].x.is_cpu() || type == at::kDouble))
    return attention(
        qkv[0].x, qkv[1].x, qkv[2].x, layout,
        {.heads = heads, .dropout = mask.probability, .mask = mask.rows, .first_head = first_head});
  // Of types of 16 bits that the node does not have it computes in float32.
  if (how == Arithmetic::kComposed)
    for (Affine& one : qkv) one.x = one.x.to(at::kFloat);
  const at::Tensor mixed =
      attention_node(qkv, {.layout = std::make_shared<const AttentionLayout>(std::move(layout)),
                           .heads = heads,
                           .first_head = first_head,
                           .dropout = mask.rows,
                           .in_bfloat16 = how == Arithmetic::kBFloat16});
  return how == Arithmetic::kComposed ? mixed.to(type) : mixed;
}

LayerRows BertLayer::rows(const LayerRows& given, const BertPass& pass) {
  const BertBatch& batch = pass.batch;
  const Arithmetic how = pass.arithmetic;
  check_rows(given.exact, {batch.ids.size(0), config_.hidden_size});
  follow_children(*self_, query_, key_, value_);
  follow_children(*inner_, intermediate_);
  const LayerRows x = completed(given, how);
  LayerRows asking = x;
  if (first_only_) {
    asking.exact = x.exact.index_select(0, batch.first);
    asking.typed =
        how == Arithmetic::kBFloat16 ? x.typed.index_select(0, batch.first) : asking.exact;
  }
  const double p = is_training() ? config_.hidden_dropout_prob : 0;
  const auto masks =
      draw_masks(pass, x.exact, {is_training() ? config_.attention_probs_dropout_prob : 0, p, p});
  const at::Tensor mixed = attend(asking, x, pass, masks[0]);
  const LayerRows y = attention_output_->rows({mixed, mixed}, asking.exact, masks[1], how);
  const at::Tensor inner = active(affine(intermediate_, y, how), config_.hidden_act, how);
  return output_->rows({inner, inner}, y.exact, masks[2], how);
}

BertEmbeddings::BertEmbeddings(const BertConfig& config)
    : dropout_(config.hidden_dropout_prob),
      words_(register_module("word_embeddings",
                             undrawn_embedding(config.vocab_size, config.hidden_size))),
      positions_(
          register_module("position_embeddings",
                          undrawn_embedding(config.max_position_embeddings, config.hidden_size))),
      types_(register_module("token_type_embeddings",
                             undrawn_embedding(config.type_vocab_size, config.hidden_size))),
      norm_(register_module("LayerNorm", norm_of(config))) {
  words_->options.padding_idx(config.pad_token_id);
}

Arithmetic BertEmbeddings::arithmetic() const {
  // A registered one: to() leaves a child that was replaced where it is.
  const auto registered = parameters();
  return registered.empty() ? Arithmetic::kComposed : arithmetic_for(registered.front());
}

at::Tensor BertEmbeddings::sum(const at::Tensor& ids, const BertBatch& batch) {
  const at::Tensor types = batch.types.defined() ? batch.types : at::zeros_like(ids);
  check_index(ids, words_->weight, "token id");
  check_index(types, types_->weight, "token type");
  const at::Tensor x = words_(ids) + types_(types);
  if (batch.positions.defined()) return x + positions_(batch.positions);
  const at::Tensor rows = positions_(at::arange(batch.length, ids.options()));
  return (x.view({batch.sequences, batch.length, -1}) + rows).view_as(x);
}

at::Tensor BertEmbeddings::compute(const at::Tensor& ids, const lockstep::BertPass& pass) {
  return rows(ids, *pass).exact;
}

LayerRows BertEmbeddings::rows(const at::Tensor& ids, const BertPass& pass) {
  check_rows(ids, pass.batch.ids.sizes());
  follow_children(*this, words_, positions_, types_, norm_);
  const Arithmetic how = pass.arithmetic;
  const at::Tensor x = sum(ids, pass.batch);
  const Mask mask = draw_masks(pass, x, {is_training() ? dropout_ : 0, 0, 0})[0];
  if (how == Arithmetic::kComposed || hooks::is_hooked(norm_->weight))
    return completed({dropped(norm_(x), mask), {}}, how);
  return norm_node({}, x.to(at::kFloat).contiguous(), norm_->weight, norm_->bias,
                   {.epsilon = norm_->options.eps(),
                    .after = mask.rows,
                    .in_bfloat16 = how == Arithmetic::kBFloat16});
}

BertPooler::BertPooler(const BertConfig& config)
    : dense_(register_module("dense", square(config))) {}

at::Tensor BertPooler::compute(const at::Tensor& x, const lockstep::BertPass& /*pass*/) {
  follow_children(*this, dense_);
  return dense_(x).tanh();
}

BertEncoder::BertEncoder(const BertConfig& config)
    : embeddings_(register_module("embeddings", std::make_shared<BertEmbeddings>(config))) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i)
    layers_->push_back(
        std::make_shared<BertLayer>(config, /*first_only=*/i + 1 == config.num_hidden_layers));
  const auto encoder = std::make_shared<torch::nn::Module>();
  encoder->register_module("layer", layers_);
  register_module("encoder", encoder);
  pooler_ = register_module("pooler", std::make_shared<BertPooler>(config));
}

std::shared_ptr<const hooks::LayerPart> BertEncoder::part() const {
  return part_of(*this);
}

lockstep::BertPass BertEncoder::pass(const BertBatch& given) const {
  const Arithmetic arithmetic = embeddings_->arithmetic();
  return std::make_shared<const BertPass>(BertPass{
      .batch = arithmetic == Arithmetic::kBFloat16 ? with_whole_rows(given, kTileRows) : given,
      .arithmetic = arithmetic,
      .part = part()});
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

}  // namespace lockstep::inline v0::internal
