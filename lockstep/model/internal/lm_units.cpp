#include "lockstep/model/internal/lm_units.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
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

namespace lockstep::inline v0::internal {
namespace {

Product product_of(const torch::nn::Linear& linear) {
  return {linear->weight, linear->bias};
}

// Of the rows that this part has between its products.
at::Tensor dropped(const at::Tensor& x, const internal::LmPass& pass, int64_t unit, LmPlace place,
                   double probability) {
  if (pass.dropout_seed == 0 || probability == 0) return x;
  const int64_t before = has_own_rows(pass) ? pass.part->index() * x.size(0) : 0;
  const kernels::Dropout dropout = dropout_at(pass, unit, place, probability);
  if (pass.tokens) return drop_rows(x, dropout, pass.layout->pieces, before);
  return drop_rows(x, dropout, pass.layout->first_row + before);
}

// Where the product is divided, its bias is added to the whole sum, by every part alike.
at::Tensor divided_product(const at::Tensor& x, const torch::nn::Linear& linear,
                           const internal::LmPass& pass, Arithmetic arithmetic) {
  if (!pass.part) return products(x, {product_of(linear)}, arithmetic, pass.deferred)[0];
  const at::Tensor y =
      pass.part->leave(products(x, {{linear->weight, {}}}, arithmetic, pass.deferred)[0]);
  return linear->bias.defined() ? y + of_all_rows(linear->bias, pass).to(y.scalar_type()) : y;
}

// What comes in is the pass's: the nodes read memory by its lengths.
void check_rows(const at::Tensor& rows, const internal::LmPass& pass) {
  const int64_t tokens = pass.layout->positions.size(0),
                own = has_own_rows(pass) ? tokens / pass.part->count() : tokens;
  if (rows.dim() == 2 && rows.size(0) == own) return;
  throw InvalidArgument("TransformerLm: a unit is given " +
                        std::to_string(rows.dim() == 0 ? 0 : rows.size(0)) +
                        " rows, and the pass has " + std::to_string(tokens) + " tokens" +
                        (own == tokens ? "" : ", of which this part has " + std::to_string(own)));
}

}  // namespace

at::Tensor enter_part(const at::Tensor& x, const internal::LmPass& pass) {
  return pass.part ? pass.part->enter(x) : x;
}

bool has_own_rows(const internal::LmPass& pass) {
  return pass.part && pass.part->divides_rows();
}

at::Tensor of_all_rows(const at::Tensor& parameter, const internal::LmPass& pass) {
  return has_own_rows(pass) ? pass.part->share(parameter) : parameter;
}

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

LmEmbedding::LmEmbedding(const LmConfig& config)
    : weight(register_parameter("weight",
                                at::empty({config.vocab_size, config.hidden_size}, at::kFloat))),
      dropout_(config.hidden_dropout),
      words_(config.vocab_size) {}

at::Tensor LmEmbedding::compute(const at::Tensor& ids, const lockstep::LmPass& pass) {
  const at::Tensor rows =
      pass->part ? pass->part->leave(own_words(ids, *pass->part)) : at::embedding(weight, ids);
  return dropped(rows, *pass, 0, LmPlace::kEmbeddings, dropout_);
}

at::Tensor LmEmbedding::own_words(const at::Tensor& ids, const hooks::ModelPart& part) const {
  const at::Tensor places = ids - part.begin(words_);
  const at::Tensor foreign = places.lt(0).logical_or_(places.ge(weight.size(0)));
  return at::embedding(weight, places.masked_fill(foreign, 0)).masked_fill(foreign.unsqueeze(1), 0);
}

LmAttention::LmAttention(const LmConfig& config, int64_t index)
    : index_(index),
      heads_{.heads = config.num_attention_heads,
             .key_value_heads = config.key_value_heads(),
             .width = config.head_width(),
             .first = 0,
             .all = config.num_attention_heads},
      dropout_(config.attention_dropout) {
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

CausalHeads LmAttention::heads_of(const internal::LmPass& pass) const {
  CausalHeads own = heads_;
  if (!pass.part) return own;
  own.heads /= pass.part->count();
  own.key_value_heads = std::max<int64_t>(1, own.key_value_heads / pass.part->count());
  own.first = pass.part->index() * own.heads;
  return own;
}

// A head that several parts have gets gradients from all of them. They are not deferred: the parts add them up, each at
// the same place of its backward.
std::vector<at::Tensor> LmAttention::project(const at::Tensor& rows, const internal::LmPass& pass,
                                             Arithmetic arithmetic) const {
  if (!pass.part || heads_.key_value_heads >= pass.part->count())
    return products(rows, {product_of(query_), product_of(key_), product_of(value_)}, arithmetic,
                    pass.deferred);
  if (hooks::is_hooked(key_->weight) || hooks::is_hooked(value_->weight))
    throw InvalidArgument(
        "TransformerLm: k_proj or v_proj has a hook, and this part shares its head with others; "
        "hook the layer, or take no more parts than heads of keys");
  const auto head = [&](const at::Tensor& parameter) {
    return parameter.defined() ? pass.part->share_head(parameter, heads_.key_value_heads)
                               : parameter;
  };
  const auto shared = [&](const torch::nn::Linear& linear) {
    return Product{head(linear->weight), head(linear->bias)};
  };
  const auto queries = products(rows, {product_of(query_)}, arithmetic, pass.deferred);
  const auto others = products(rows, {shared(key_), shared(value_)}, arithmetic);
  return {queries[0], others[0], others[1]};
}

at::Tensor LmAttention::attend(const at::Tensor& rows, const internal::LmPass& pass,
                               Arithmetic arithmetic) {
  const auto qkv = project(enter_part(rows, pass), pass, arithmetic);
  const CausalHeads heads = heads_of(pass);
  const at::Tensor mixed =
      pass.cache != nullptr ? with_cache(qkv[0], qkv[1], qkv[2], pass)
      : pass.tokens
          ? context_attention(qkv[0], qkv[1], qkv[2], heads, pass, arithmetic)
          : causal_attention(qkv[0], qkv[1], qkv[2], heads, pass.layout, pass.rotary,
                             dropout_at(pass, index_ + 1, LmPlace::kWeights, dropout_), arithmetic);
  return divided_product(mixed, out_, pass, arithmetic);
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

LmMlp::LmMlp(const LmConfig& config) {
  const int64_t width = config.hidden_size, inner = config.intermediate_size;
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
  const auto inner = products(enter_part(rows, pass), {product_of(gate_), product_of(up_)},
                              arithmetic, pass.deferred);
  return divided_product(swiglu(inner[0], inner[1], arithmetic), down_, pass, arithmetic);
}

LmLayer::LmLayer(const LmConfig& config, const LmExperts& experts, int64_t index)
    : unit_(index + 1),
      epsilon_(config.rms_norm_eps),
      dropout_(config.hidden_dropout),
      attention_(register_module("self_attn", std::make_shared<LmAttention>(config, index))),
      mlp_(config.has_experts() ? nullptr
                                : register_module("mlp", std::make_shared<LmMlp>(config))),
      sparse_(config.has_experts()
                  ? register_module(expert_names(config).block,
                                    std::make_shared<LmSparseMlp>(config, experts, index))
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
  check_rows(rows, *pass);
  const Arithmetic how = arithmetic();
  const auto norm = [&](const at::Tensor& x, const at::Tensor& residual, const LmNorm& of) {
    return rms_norm(x, residual, of_all_rows(of.weight, *pass), epsilon_, how);
  };
  const auto kept = [&](const at::Tensor& x, LmPlace place) {
    return dropped(x, *pass, unit_, place, dropout_);
  };
  const at::Tensor first = norm(rows, {}, *input_norm_).y;
  const at::Tensor attended = kept(attention_->attend(first, *pass, how), LmPlace::kAttention);
  const RmsNormed second = norm(attended, rows, *second_norm_);
  return second.z + kept(work(second.y, *pass, how), LmPlace::kMlp);
}

LmLastNorm::LmLastNorm(const LmConfig& config)
    : weight(register_parameter("weight", at::ones({config.hidden_size}, at::kFloat))),
      epsilon_(config.rms_norm_eps) {}

at::Tensor LmLastNorm::compute(const at::Tensor& rows, const lockstep::LmPass& pass) {
  return rms_norm(rows, {}, of_all_rows(weight, *pass), epsilon_, arithmetic_for(weight)).y;
}

LmHead::LmHead(const LmConfig& config, std::shared_ptr<LmEmbedding> tied)
    : tied_(std::move(tied)), words_(config.vocab_size) {
  if (!tied_)
    weight_ = register_parameter("weight", at::empty({words_, config.hidden_size}, at::kFloat));
}

VocabularyPart LmHead::words_of(const internal::LmPass& pass) const {
  if (!pass.part) return {};
  return {
      .first = pass.part->begin(words_),
      .all = words_,
      .combine = [part = pass.part](const at::Tensor& statistics) { part->combine(statistics); }};
}

at::Tensor LmHead::compute(const at::Tensor& rows, const lockstep::LmPass& pass) {
  const at::Tensor logits = products(enter_part(rows, *pass), {{weight(), {}}},
                                     arithmetic_for(weight()), pass->deferred)[0];
  return pass->part ? pass->part->gather(logits, words_) : logits;
}

TokenScores LmHead::scores(const at::Tensor& rows, const at::Tensor& targets,
                           const internal::LmPass& pass) {
  return vocabulary_scores(enter_part(rows, pass), weight(), targets, {.part = words_of(pass)});
}
at::Tensor LmHead::loss(const at::Tensor& rows, const at::Tensor& targets,
                        const internal::LmPass& pass, double divide_by) {
  return vocabulary_loss(
      enter_part(rows, pass), weight(), targets,
      {.part = words_of(pass), .deferred = pass.deferred, .divide_by = divide_by});
}

}  // namespace lockstep::inline v0::internal
