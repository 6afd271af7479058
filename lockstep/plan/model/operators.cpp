#include "lockstep/plan/model/operators.h"

#include <algorithm>

namespace lockstep::inline v0::plan {
namespace {

double as(int64_t number) {
  return static_cast<double>(number);
}

void add_attention(const ModelShape& m, const LayerDivision& d, LayerOperators& found) {
  const double hidden = as(m.hidden), parts = d.tensor;
  const double heads = as(m.heads) / parts, keys = std::max(1.0, as(m.key_value_heads()) / parts);
  const double queries = heads * as(m.score_width()), values = heads * as(m.value_width());
  if (m.kv_rank > 0) {
    if (m.query_rank > 0) {
      found.products.push_back({d.rows, as(m.query_rank), hidden});
      found.products.push_back({d.rows, queries, as(m.query_rank)});
    } else {
      found.products.push_back({d.rows, queries, hidden});
    }
    found.products.push_back({d.rows, as(m.kv_rank + m.rotated_dim), hidden});
    found.products.push_back({d.rows, heads * as(m.head_width() + m.value_width()), as(m.kv_rank)});
    // Norms of the two short vectors, and keys that are put together from two parts.
    found.whole_rows += 2 * d.rows * as(m.query_rank + m.kv_rank);
    found.divided += 2 * d.rows * (2 * queries + values);
  } else {
    found.products.push_back({d.rows, queries + 2 * keys * as(m.head_width()), hidden});
    if (m.positions == 0) found.divided += 2 * d.rows * (heads + keys) * as(m.head_width());
    if (m.qk_norm) found.divided += 2 * d.rows * (heads + keys) * as(m.head_width());
  }
  found.products.push_back({d.rows, hidden, values});
  found.score_flops = 2 * d.rows * d.sequence * heads * as(m.score_width() + m.value_width()) *
                      (m.causal ? 0.5 : 1);
  found.scores = heads * d.rows * d.sequence;
}

// An MLP of `inner` columns on `rows` tokens.
void add_mlp(const ModelShape& m, double rows, double inner, double count, bool expert,
             LayerOperators& found) {
  if (rows <= 0 || count <= 0) return;
  const double hidden = as(m.hidden);
  found.products.push_back({rows, inner * (m.gated ? 2 : 1), hidden, count, expert});
  found.products.push_back({rows, hidden, inner, count, expert});
  found.divided += rows * count * inner * (m.gated ? 3 : 2);
}

}  // namespace

LayerOperators layer_operators(const ModelShape& m, int64_t layer, const LayerDivision& d) {
  LayerOperators found;
  // Two norms, each read and written; two sums, each of two that are read and one that is written.
  found.whole_rows = 10 * d.rows * as(m.hidden);
  add_attention(m, d, found);
  if (!m.layer_has_experts(layer)) {
    add_mlp(m, d.rows, as(m.ffn) / d.tensor, 1, false, found);
    return found;
  }
  if (m.shared_ffn > 0) add_mlp(m, d.rows, as(m.shared_ffn) / d.tensor, 1, false, found);
  found.products.push_back({d.rows, as(m.experts), as(m.hidden)});
  const double here = std::max(1.0, d.experts_here);
  add_mlp(m, d.expert_rows / here, as(m.expert_ffn) / d.expert_tensor, here, true, found);
  // Tokens are put in the experts' order and back, and a token's outputs are summed with their shares.
  found.whole_rows += 2 * d.expert_rows * as(m.hidden) + 3 * d.expert_rows * as(m.hidden);
  return found;
}

}  // namespace lockstep::inline v0::plan
