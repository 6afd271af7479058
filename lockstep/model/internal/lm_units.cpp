#include "lockstep/model/internal/lm_units.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/hooks/layer_hook.h"
#include "lockstep/kernels/dropout.h"
#include "lockstep/kernels/random_word.h"
#include "lockstep/model/internal/follow.h"
#include "lockstep/model/internal/lm_context.h"
#include "lockstep/model/internal/undrawn.h"

namespace lockstep::internal {
namespace {

Product product_of(const torch::nn::Linear& linear) {
  return {linear->weight, linear->bias};
}

// Of the rows that this part has between its products.
at::Tensor dropped(const at::Tensor& x, const LmSplit& split, const internal::LmPass& pass,
                   int64_t unit, LmPlace place, double probability) {
  if (pass.dropout_seed == 0 || probability == 0) return x;
  const int64_t before = split.divides_rows ? split.part * x.size(0) : 0;
  const kernels::Dropout dropout = dropout_at(pass, unit, place, probability);
  if (pass.context) return drop_rows(x, dropout, pass.layout->pieces, before);
  return drop_rows(x, dropout, pass.layout->first_row + before);
}

// A parameter that all parts have, for rows of which each has its own or all.
at::Tensor shared(const at::Tensor& parameter, const LmSplit& split) {
  return split.divides_rows ? split.share(parameter) : parameter;
}

// Where the product is divided, its bias is added to the whole sum, by every part alike.
at::Tensor divided_product(const at::Tensor& x, const torch::nn::Linear& linear,
                           const LmSplit& split, const internal::LmPass& pass,
                           Arithmetic arithmetic) {
  if (!split.leave) return products(x, {product_of(linear)}, arithmetic, pass.deferred)[0];
  const at::Tensor y =
      split.leave(products(x, {{linear->weight, {}}}, arithmetic, pass.deferred)[0]);
  return linear->bias.defined() ? y + shared(linear->bias, split).to(y.scalar_type()) : y;
}

// What comes in is the pass's: the nodes read memory by its lengths.
void check_rows(const at::Tensor& rows, const LmSplit& split, const internal::LmPass& pass) {
  const int64_t tokens = pass.layout->positions.size(0), own = split.own_rows(tokens);
  if (rows.dim() == 2 && rows.size(0) == own) return;
  throw InvalidArgument("TransformerLm: a unit is given " +
                        std::to_string(rows.dim() == 0 ? 0 : rows.size(0)) +
                        " rows, and the pass has " + std::to_string(tokens) + " tokens" +
                        (own == tokens ? "" : ", of which this part has " + std::to_string(own)));
}

at::Tensor entered(const at::Tensor& x, const LmSplit& split) {
  return split.enter ? split.enter(x) : x;
}

at::Tensor vocabulary_rows(const LmConfig& config, const LmSplit& split) {
  const int64_t rows = split.vocabulary_begin(config.vocab_size, split.part + 1) -
                       split.vocabulary_begin(config.vocab_size, split.part);
  return at::empty({rows, config.hidden_size}, at::kFloat);
}

}  // namespace

kernels::Dropout dropout_at(const internal::LmPass& pass, int64_t unit, LmPlace place,
                            double probability) {
  if (pass.dropout_seed == 0) return {};
  // A hash: seeds that are a multiple of the rows' step apart would draw one mask, shifted.
  const uint64_t number = static_cast<uint64_t>(unit) * 4 + static_cast<uint64_t>(place);
  const uint64_t seed = kernels::row_key(pass.dropout_seed, static_cast<int64_t>(number));
  return kernels::make_dropout(seed, probability);
}

LmNorm::LmNorm(int64_t width)
    : weight(register_parameter("weight", at::ones({width}, at::kFloat))) {}

LmEmbedding::LmEmbedding(const LmConfig& config, const LmSplit& split)
    : weight(register_parameter("weight", vocabulary_rows(config, split))),
      dropout_(config.hidden_dropout),
      first_(split.vocabulary_begin(config.vocab_size, split.part)),
      split_(split) {}

at::Tensor LmEmbedding::compute(const at::Tensor& ids, const lockstep::LmPass& pass) {
  const at::Tensor rows = split_.combine ? split_.leave(own_rows(ids)) : at::embedding(weight, ids);
  return dropped(rows, split_, *pass, 0, LmPlace::kEmbeddings, dropout_);
}

at::Tensor LmEmbedding::own_rows(const at::Tensor& ids) const {
  const at::Tensor places = ids - first_;
  const at::Tensor foreign = places.lt(0).logical_or_(places.ge(weight.size(0)));
  return at::embedding(weight, places.masked_fill(foreign, 0)).masked_fill(foreign.unsqueeze(1), 0);
}

LmAttention::LmAttention(const LmConfig& config, const LmSplit& split, int64_t index)
    : index_(index),
      heads_{.heads = config.num_attention_heads / split.parts,
             .key_value_heads = split.own_key_heads(config.key_value_heads()),
             .width = config.head_width(),
             .first = split.part * (config.num_attention_heads / split.parts),
             .all = config.num_attention_heads},
      shares_head_(config.key_value_heads() < split.parts),
      dropout_(config.attention_dropout),
      split_(split) {
  const int64_t width = config.hidden_size, queries = heads_.heads * heads_.width,
                keys = heads_.key_value_heads * heads_.width;
  const bool bias = config.attention_bias;
  query_ = register_module("q_proj", undrawn_linear(width, queries, bias));
  key_ = register_module("k_proj", undrawn_linear(width, keys, bias));
  value_ = register_module("v_proj", undrawn_linear(width, keys, bias));
  out_ = register_module("o_proj", undrawn_linear(queries, width, bias));
}

bool LmAttention::is_hooked() {
  follow_children(*this, query_, key_, value_, out_);
  for (const auto* linear : {&query_, &key_, &value_, &out_})
    if (hooks::is_hooked((*linear)->weight)) return true;
  return false;
}

// A head that several parts have gets gradients from all of them. They are not deferred: the parts add them up, each at
// the same place of its backward.
std::vector<at::Tensor> LmAttention::project(const at::Tensor& rows, const internal::LmPass& pass,
                                             Arithmetic arithmetic) const {
  if (!shares_head_)
    return products(rows, {product_of(query_), product_of(key_), product_of(value_)}, arithmetic,
                    pass.deferred);
  if (hooks::is_hooked(key_->weight) || hooks::is_hooked(value_->weight))
    throw InvalidArgument(
        "TransformerLm: k_proj or v_proj has a hook, and this part shares its head with others; "
        "hook the layer, or take no more parts than heads of keys");
  const auto shared = [this](const torch::nn::Linear& linear) {
    return Product{split_.share_head(linear->weight),
                   linear->bias.defined() ? split_.share_head(linear->bias) : at::Tensor()};
  };
  const auto queries = products(rows, {product_of(query_)}, arithmetic, pass.deferred);
  const auto others = products(rows, {shared(key_), shared(value_)}, arithmetic);
  return {queries[0], others[0], others[1]};
}

at::Tensor LmAttention::attend(const at::Tensor& rows, const internal::LmPass& pass,
                               Arithmetic arithmetic) {
  const auto qkv = project(entered(rows, split_), pass, arithmetic);
  const at::Tensor mixed =
      pass.cache != nullptr ? with_cache(qkv[0], qkv[1], qkv[2], pass)
      : pass.context
          ? context_attention(qkv[0], qkv[1], qkv[2], heads_, pass, arithmetic)
          : causal_attention(qkv[0], qkv[1], qkv[2], heads_, pass.layout, pass.rotary,
                             dropout_at(pass, index_ + 1, LmPlace::kWeights, dropout_), arithmetic);
  return divided_product(mixed, out_, split_, pass, arithmetic);
}

// The new tokens look at all that the cache has and at each other.
at::Tensor LmAttention::with_cache(const at::Tensor& queries, const at::Tensor& keys,
                                   const at::Tensor& values, const internal::LmPass& pass) const {
  LmCache& cache = *pass.cache;
  const int64_t many = cache.sequences, news = queries.size(0) / many, all = cache.length + news;
  const auto layer = static_cast<size_t>(index_);
  // [heads, many * news, width] -> [many, heads, news, width]
  const auto by_sequence = [&](const at::Tensor& x, int64_t heads) {
    return x.view({heads, many, news, heads_.width}).transpose(0, 1);
  };
  const auto plain = [&](const at::Tensor& x, int64_t heads) {
    return x.view({many, news, heads, heads_.width}).transpose(1, 2);
  };
  const at::Tensor q =
      by_sequence(rotated(queries, heads_.heads, pass.layout->positions, pass.rotary).contiguous(),
                  heads_.heads);
  const at::Tensor k = by_sequence(
      rotated(keys, heads_.key_value_heads, pass.layout->positions, pass.rotary).contiguous(),
      heads_.key_value_heads);
  cache.keys[layer].narrow(2, cache.length, news).copy_(k);
  cache.values[layer].narrow(2, cache.length, news).copy_(plain(values, heads_.key_value_heads));
  const int64_t group = heads_.heads / heads_.key_value_heads;
  const auto seen = [&](const at::Tensor& x) {
    return repeated(x.narrow(2, 0, all).to(q.scalar_type()), group);
  };
  std::optional<at::Tensor> mask;
  if (news > 1 && cache.length > 0) {
    mask = at::ones({news, all}, q.options().dtype(at::kBool)).tril(cache.length);
  }
  const at::Tensor mixed = at::scaled_dot_product_attention(
      q, seen(cache.keys[layer]), seen(cache.values[layer]), mask, 0.0,
      /*is_causal=*/news > 1 && cache.length == 0);
  return mixed.transpose(1, 2).reshape({many * news, heads_.heads * heads_.width});
}

LmMlp::LmMlp(const LmConfig& config, const LmSplit& split) : split_(split) {
  const int64_t width = config.hidden_size, inner = config.intermediate_size / split.parts;
  gate_ = register_module("gate_proj", undrawn_linear(width, inner, config.mlp_bias));
  up_ = register_module("up_proj", undrawn_linear(width, inner, config.mlp_bias));
  down_ = register_module("down_proj", undrawn_linear(inner, width, config.mlp_bias));
}

bool LmMlp::is_hooked() {
  follow_children(*this, gate_, up_, down_);
  for (const auto* linear : {&gate_, &up_, &down_})
    if (hooks::is_hooked((*linear)->weight)) return true;
  return false;
}

at::Tensor LmMlp::work(const at::Tensor& rows, const internal::LmPass& pass,
                       Arithmetic arithmetic) {
  const auto inner = products(entered(rows, split_), {product_of(gate_), product_of(up_)},
                              arithmetic, pass.deferred);
  return divided_product(swiglu(inner[0], inner[1], arithmetic), down_, split_, pass, arithmetic);
}

LmLayer::LmLayer(const LmConfig& config, const LmSplit& split, const LmExperts& experts,
                 int64_t index)
    : unit_(index + 1),
      epsilon_(config.rms_norm_eps),
      dropout_(config.hidden_dropout),
      split_(split),
      attention_(register_module("self_attn", std::make_shared<LmAttention>(config, split, index))),
      mlp_(config.has_experts() ? nullptr
                                : register_module("mlp", std::make_shared<LmMlp>(config, split))),
      sparse_(config.has_experts()
                  ? register_module(expert_names(config).block,
                                    std::make_shared<LmSparseMlp>(config, split, experts, index))
                  : nullptr),
      input_norm_(register_module("input_layernorm", std::make_shared<LmNorm>(config.hidden_size))),
      second_norm_(register_module("post_attention_layernorm",
                                   std::make_shared<LmNorm>(config.hidden_size))) {}

Arithmetic LmLayer::arithmetic() {
  // Both are asked, for each follows its children.
  const bool attention_hooked = attention_->is_hooked();
  const bool mlp_hooked = mlp_ ? mlp_->is_hooked() : sparse_->is_hooked();
  return attention_hooked || mlp_hooked ? Arithmetic::kComposed
                                        : arithmetic_for(input_norm_->weight);
}

at::Tensor LmLayer::compute(const at::Tensor& rows, const lockstep::LmPass& pass) {
  check_rows(rows, split_, *pass);
  const Arithmetic how = arithmetic();
  const auto norm = [&](const at::Tensor& x, const at::Tensor& residual, const LmNorm& of) {
    return rms_norm(x, residual, shared(of.weight, split_), epsilon_, how);
  };
  const auto kept = [&](const at::Tensor& x, LmPlace place) {
    return dropped(x, split_, *pass, unit_, place, dropout_);
  };
  const at::Tensor first = norm(rows, {}, *input_norm_).y;
  const at::Tensor attended = kept(attention_->attend(first, *pass, how), LmPlace::kAttention);
  const RmsNormed second = norm(attended, rows, *second_norm_);
  return second.z + kept(work(second.y, *pass, how), LmPlace::kMlp);
}

LmLastNorm::LmLastNorm(const LmConfig& config, const LmSplit& split)
    : weight(register_parameter("weight", at::ones({config.hidden_size}, at::kFloat))),
      epsilon_(config.rms_norm_eps),
      split_(split) {}

at::Tensor LmLastNorm::compute(const at::Tensor& rows, const lockstep::LmPass&) {
  return rms_norm(rows, {}, shared(weight, split_), epsilon_, arithmetic_for(weight)).y;
}

LmHead::LmHead(const LmConfig& config, const LmSplit& split, std::shared_ptr<LmEmbedding> tied)
    : tied_(std::move(tied)), split_(split) {
  if (!tied_) weight_ = register_parameter("weight", vocabulary_rows(config, split));
  if (split.combine)
    part_ = {.first = split.vocabulary_begin(config.vocab_size, split.part),
             .all = config.vocab_size,
             .combine = split.combine};
}

at::Tensor LmHead::compute(const at::Tensor& rows, const lockstep::LmPass& pass) {
  const auto logits = [&](const at::Tensor& of) {
    return products(of, {{weight(), {}}}, arithmetic_for(weight()), pass->deferred)[0];
  };
  return split_.combine ? split_.gather(logits(entered(rows, split_))) : logits(rows);
}

TokenScores LmHead::scores(const at::Tensor& rows, const at::Tensor& targets) {
  return vocabulary_scores(split_.combine ? entered(rows, split_) : rows, weight(), targets,
                           {.part = part_});
}
at::Tensor LmHead::loss(const at::Tensor& rows, const at::Tensor& targets,
                        const internal::LmPass& pass, double divide_by) {
  return vocabulary_loss(split_.combine ? entered(rows, split_) : rows, weight(), targets,
                         {.part = part_, .deferred = pass.deferred, .divide_by = divide_by});
}

}  // namespace lockstep::internal
