#include "lockstep/model/internal/bert_split.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/kernels/dropout.h"
#include "lockstep/model/internal/lm_nodes.h"
#include "lockstep/model/internal/undrawn.h"

namespace lockstep::internal {
namespace {

// As at::dropout() draws it.
at::Tensor drawn_mask(at::Tensor mask, double probability, const at::Generator& generator) {
  return mask.bernoulli_(1 - probability, generator).div_(1 - probability);
}

at::Tensor narrowed(const at::Tensor& x, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kBFloat16 ? x.to(at::kBFloat16) : x;
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                   Arithmetic arithmetic) {
  return products(x, {{weight, bias}}, arithmetic)[0];
}

at::Tensor active(const at::Tensor& x, const std::string& name) {
  if (name == "relu") return at::relu(x);
  return at::gelu(x, name == "gelu" ? "none" : "tanh");
}

// Of this part's heads, span by span.
at::Tensor attended(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                    const DividedLayer& how, const PartMasks& masks) {
  const BertSplit& split = *how.split;
  const int64_t all = how.config->num_attention_heads, heads = all / split.parts,
                width = queries.size(1) / heads;
  const auto heads_of = [&](const at::Tensor& rows, int64_t begin, int64_t count) {
    return rows.narrow(0, begin, count).view({count, heads, width}).transpose(0, 1);
  };
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < how.layout->spans.size(); ++i) {
    const AttentionSpan& span = how.layout->spans[i];
    at::Tensor scores = at::matmul(heads_of(queries, span.query_begin, span.queries),
                                   heads_of(keys, span.key_begin, span.keys).transpose(1, 2));
    if (scores.scalar_type() == at::kBFloat16) scores = scores.to(at::kFloat);
    scores = scores * (1 / std::sqrt(static_cast<double>(width)));
    if (how.layout->bias.defined())
      scores = scores + how.layout->bias[static_cast<int64_t>(i)].narrow(0, 0, span.keys);
    const at::Tensor weights = masks.weights(at::softmax(scores, -1), 0, split.part * heads, all,
                                             span.query_begin, queries.size(0));
    const at::Tensor mixed =
        at::matmul(weights.to(values.scalar_type()), heads_of(values, span.key_begin, span.keys));
    parts.push_back(mixed.transpose(0, 1).reshape({span.queries, heads * width}));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace

void check_split(const BertConfig& config, const BertSplit& split) {
  if (split.parts == 1 && split.part == 0) return;
  if (split.parts < 1 || split.part < 0 || split.part >= split.parts ||
      config.num_attention_heads % split.parts != 0 ||
      config.intermediate_size % split.parts != 0 || config.vocab_size < split.parts)
    throw InvalidArgument("BertClassifier: " + std::to_string(config.num_attention_heads) +
                          " heads, " + std::to_string(config.intermediate_size) +
                          " inner columns and " + std::to_string(config.vocab_size) +
                          " words do not divide into part " + std::to_string(split.part) + " of " +
                          std::to_string(split.parts));
  if (!split.enter || !split.leave || !split.generator)
    throw InvalidArgument(
        "BertClassifier: a part of a model needs BertSplit::enter, leave and generator");
}

int64_t words_begin(const BertConfig& config, const BertSplit& split, int64_t part) {
  return config.vocab_size * part / split.parts;
}

PartMasks::PartMasks(const BertSplit& split, Arithmetic arithmetic,
                     const std::array<double, 3>& probabilities)
    : composed_(arithmetic == Arithmetic::kComposed), probabilities_(probabilities) {
  if (probabilities == std::array<double, 3>{}) return;
  generator_ = split.generator();
  if (composed_) return;
  const std::vector<uint64_t> seeds = draw_seeds(3, generator_);
  for (size_t i = 0; i < 3; ++i) dropouts_[i] = kernels::make_dropout(seeds[i], probabilities[i]);
}

at::Tensor PartMasks::rows(const at::Tensor& x, size_t place) const {
  if (probabilities_[place] == 0) return x;
  if (!composed_) return drop_rows(x, dropouts_[place], 0);
  return x * drawn_mask(at::empty_like(x), probabilities_[place], generator_);
}

at::Tensor PartMasks::weights(const at::Tensor& x, size_t place, int64_t first_head,
                              int64_t all_heads, int64_t query_begin, int64_t all_queries) const {
  if (probabilities_[place] == 0) return x;
  const int64_t heads = x.size(0), queries = x.size(1), keys = x.size(2);
  if (composed_) {  // all heads' are drawn, whoever has them
    const at::Tensor all = at::empty({all_heads, queries, keys}, x.options().requires_grad(false));
    return x * drawn_mask(all, probabilities_[place], generator_).narrow(0, first_head, heads);
  }
  // A row of the mask for each head of the layer and each row that asks.
  std::vector<RowPiece> pieces;
  for (int64_t head = first_head; head < first_head + heads; ++head)
    pieces.push_back({head * all_queries + query_begin, queries});
  return drop_rows(x.reshape({heads * queries, keys}), dropouts_[place], pieces, 0).view_as(x);
}

at::Tensor divided_layer(const at::Tensor& x, const LayerParameters& p, const DividedLayer& how) {
  const BertConfig& config = *how.config;
  const BertSplit& split = *how.split;
  const Arithmetic arithmetic = how.arithmetic;
  const double hidden = how.training ? config.hidden_dropout_prob : 0;
  const PartMasks masks(split, arithmetic,
                        {how.training ? config.attention_probs_dropout_prob : 0, hidden, hidden});
  // The bias of a divided product is added to the whole sum, by every part alike.
  const auto normed = [&](const at::Tensor& inner, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& residual, const at::Tensor& gamma,
                          const at::Tensor& beta, size_t place) {
    const at::Tensor sum = split.leave(product(inner, weight, {}, arithmetic));
    const at::Tensor z = masks.rows(sum.to(residual.scalar_type()) + bias, place) + residual;
    return at::layer_norm(z, {config.hidden_size}, gamma, beta, config.layer_norm_eps);
  };
  const at::Tensor entered = split.enter(narrowed(x, arithmetic));
  const bool all = !how.first.defined();
  const at::Tensor residual = all ? x : x.index_select(0, how.first);
  const at::Tensor asking = all ? entered : entered.index_select(0, how.first);
  const auto keys_and_values =
      products(entered, {{p.key_weight, p.key_bias}, {p.value_weight, p.value_bias}}, arithmetic);
  const at::Tensor mixed = attended(product(asking, p.query_weight, p.query_bias, arithmetic),
                                    keys_and_values[0], keys_and_values[1], how, masks);
  const at::Tensor y =
      normed(mixed, p.mix_weight, p.mix_bias, residual, p.mix_gamma, p.mix_beta, 1);
  const at::Tensor inner = active(
      product(split.enter(narrowed(y, arithmetic)), p.inner_weight, p.inner_bias, arithmetic),
      config.hidden_act);
  return normed(inner, p.outer_weight, p.outer_bias, y, p.gamma, p.beta, 2);
}

at::Tensor divided_words(const at::Tensor& ids, const at::Tensor& weight, const BertConfig& config,
                         const BertSplit& split) {
  const auto least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
  if (least < 0 || most >= config.vocab_size)
    throw InvalidArgument("BertClassifier: the token id " +
                          std::to_string(least < 0 ? least : most) +
                          " is outside the vocabulary of " + std::to_string(config.vocab_size));
  const int64_t first = words_begin(config, split, split.part),
                padding = config.pad_token_id - first;
  const at::Tensor places = ids - first;
  const at::Tensor foreign = places.lt(0).logical_or_(places.ge(weight.size(0)));
  const bool has_padding = padding >= 0 && padding < weight.size(0);
  const at::Tensor rows =
      at::embedding(weight, places.masked_fill(foreign, 0), has_padding ? padding : -1);
  return split.leave(rows.masked_fill(foreign.unsqueeze(1), 0));
}

}  // namespace lockstep::internal
