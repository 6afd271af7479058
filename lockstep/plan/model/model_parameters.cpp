#include "lockstep/core/errors.h"
#include "lockstep/plan/model/model_shape.h"

namespace lockstep::inline v0::plan {
namespace {

// A matrix, with a bias of as many as its columns where it has one.
int64_t matrix(int64_t rows, int64_t columns, bool bias) {
  return rows * columns + (bias ? columns : 0);
}

int64_t norm(const ModelShape& model, int64_t width) {
  return width * (model.layer_norm ? 2 : 1);
}

int64_t attention_parameters(const ModelShape& m) {
  const int64_t values = m.heads * m.value_width();
  int64_t sum = matrix(values, m.hidden, m.output_bias) + (m.sinks ? m.heads : 0);
  if (m.kv_rank > 0) {
    const int64_t queries = m.heads * m.score_width();
    sum += m.query_rank > 0
               ? m.hidden * m.query_rank + norm(m, m.query_rank) + m.query_rank * queries
               : m.hidden * queries;
    return sum + m.hidden * (m.kv_rank + m.rotated_dim) + norm(m, m.kv_rank) +
           m.kv_rank * m.heads * (m.head_width() + m.value_width());
  }
  const int64_t keys = m.key_value_heads() * m.head_width();
  return sum + matrix(m.hidden, m.heads * m.head_width(), m.query_bias) +
         2 * matrix(m.hidden, keys, m.query_bias) + (m.qk_norm ? 2 * norm(m, m.head_width()) : 0);
}

int64_t mlp_parameters(const ModelShape& m, int64_t inner, bool bias) {
  return matrix(m.hidden, inner, bias) * (m.gated ? 2 : 1) + matrix(inner, m.hidden, bias);
}

}  // namespace

LayerParameters layer_parameters(const ModelShape& m, int64_t layer) {
  LayerParameters found;
  found.attention = attention_parameters(m);
  found.norms = 2 * norm(m, m.hidden);
  if (!m.layer_has_experts(layer)) {
    found.mlp = mlp_parameters(m, m.ffn, m.mlp_bias);
    return found;
  }
  if (m.shared_ffn > 0)
    found.mlp = mlp_parameters(m, m.shared_ffn, false) + (m.shared_gate ? m.hidden : 0);
  found.router = m.hidden * m.experts + (m.router_bias ? m.experts : 0);
  found.expert = mlp_parameters(m, m.expert_ffn, m.expert_bias);
  found.experts = found.expert * m.experts;
  return found;
}

int64_t embedding_parameters(const ModelShape& m) {
  return (m.vocab + m.positions + m.token_types) * m.hidden +
         (m.embedding_norm ? norm(m, m.hidden) : 0);
}

int64_t head_parameters(const ModelShape& m) {
  int64_t sum = m.final_norm ? norm(m, m.hidden) : 0;
  if (m.pooler) sum += matrix(m.hidden, m.hidden, true);
  if (m.head_transform) sum += matrix(m.hidden, m.hidden, true) + norm(m, m.hidden) + m.vocab;
  if (m.head && !m.tied) sum += m.vocab * m.hidden;
  return sum;
}

int64_t parameter_count(const ModelShape& model) {
  int64_t sum = embedding_parameters(model) + head_parameters(model);
  for (int64_t layer = 0; layer < model.layers; ++layer)
    sum += layer_parameters(model, layer).total();
  return sum;
}

int64_t active_parameter_count(const ModelShape& model) {
  int64_t sum = embedding_parameters(model) + head_parameters(model);
  for (int64_t layer = 0; layer < model.layers; ++layer)
    sum += layer_parameters(model, layer).active(model.experts_per_token);
  return sum;
}

}  // namespace lockstep::inline v0::plan
