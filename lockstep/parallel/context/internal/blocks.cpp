#include "lockstep/parallel/context/internal/blocks.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "lockstep/parallel/context/context_layout.h"

namespace lockstep::inline v0::internal {

at::ScalarType accumulated_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

namespace {

// Products of a forward between two calls of `between`: some milliseconds of one core.
constexpr int64_t kProductsOfAPiece = int64_t{1} << 28;

// One block of the sequences of one run.
struct RunBlock {
  int64_t sequences = 0;
  int64_t query_row = 0, own_rows = 0;  // the part's first row of the run, and its rows a sequence
  int64_t key_row = 0, their_rows = 0;
  ContextBlock block;

  // [sequences, block's rows, ...] of rows [rows, ...].
  at::Tensor queries(const at::Tensor& rows) const {
    return rows_of(rows, query_row, own_rows, block.query_begin, block.queries);
  }
  at::Tensor keys(const at::Tensor& rows) const {
    return rows_of(rows, key_row, their_rows, block.key_begin, block.keys);
  }

 private:
  at::Tensor rows_of(const at::Tensor& rows, int64_t first, int64_t each, int64_t begin,
                     int64_t count) const {
    return rows.narrow(0, first, sequences * each)
        .unflatten(0, {sequences, each})
        .narrow(1, begin, count);
  }
};

std::vector<RunBlock> blocks_of(const BlockPlace& place) {
  std::vector<RunBlock> blocks;
  int64_t query_row = 0, key_row = 0;
  for (const ContextRun& run : context_runs(place.lengths)) {
    RunBlock one{.sequences = run.sequences,
                 .query_row = query_row,
                 .own_rows = context_count(run.length, place.part, place.parts),
                 .key_row = key_row,
                 .their_rows = context_count(run.length, place.of_part, place.parts),
                 .block = context_block(run.length, place.part, place.of_part, place.parts)};
    query_row += one.sequences * one.own_rows;
    key_row += one.sequences * one.their_rows;
    if (!one.block.empty()) blocks.push_back(one);
  }
  return blocks;
}

// Heads of keys that are computed together: all threads have one of the queries' to do.
int64_t key_heads_at_a_time(const RunBlock& one, int64_t key_heads, int64_t group, int64_t width) {
  const int64_t products =
      2 * one.sequences * one.block.queries * one.block.keys * group * width;  // of a head of keys
  const int64_t busy =
      (at::get_num_threads() + group * one.sequences - 1) / (group * one.sequences);
  return std::clamp(kProductsOfAPiece / std::max<int64_t>(products, 1), std::min(busy, key_heads),
                    key_heads);
}

// [sequences, rows, heads, width] -> [sequences, heads, rows, width].
at::Tensor by_heads(const at::Tensor& rows) {
  return rows.transpose(1, 2);
}
// Heads of keys, each for the `group` heads of queries that look at it.
at::Tensor by_heads_for_all(const at::Tensor& rows, int64_t group) {
  if (group == 1) return by_heads(rows);
  return by_heads(rows)
      .unsqueeze(2)
      .expand({rows.size(0), rows.size(2), group, rows.size(1), rows.size(3)})
      .flatten(1, 2);
}
// The gradient's way back, into rows.
void add_of_group(const at::Tensor& gradient, int64_t group, const at::Tensor& rows) {
  const at::Tensor all = gradient.transpose(1, 2);
  rows.add_(group == 1 ? all : all.unflatten(2, {-1, group}).sum(3, false, rows.scalar_type()));
}

// Scores [sequences, heads, queries, keys] of a device, whose fused kernels have no sums for all types and widths.
at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k, bool causal) {
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3))
                                .to(accumulated_type(q.scalar_type()))
                                .div_(std::sqrt(static_cast<double>(q.size(3))));
  if (!causal) return scores;
  const at::Tensor future = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu(1);
  return scores.masked_fill(future, -std::numeric_limits<double>::infinity());
}

// What queries see [sequences, heads, queries, width], and the logarithms of the sums of exponentials.
std::pair<at::Tensor, at::Tensor> attend(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, bool causal) {
  if (q.is_cpu()) {
    auto [mixed, sums] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal);
    return {std::move(mixed), std::move(sums)};
  }
  const at::Tensor scores = scores_of(q, k, causal);
  const at::Tensor sums = scores.logsumexp(-1);
  return {at::matmul((scores - sums.unsqueeze(-1)).exp_().to(v.scalar_type()), v), sums};
}

// Gradients of queries, keys and values, by what attend() has given for all of the queries' keys.
std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
    const at::Tensor& dmixed, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& mixed, const at::Tensor& sums, bool causal) {
  if (q.is_cpu())
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(dmixed, q, k, v, mixed, sums,
                                                                    0.0, causal);
  const at::ScalarType type = q.scalar_type(), wide = accumulated_type(type);
  const at::Tensor weights = (scores_of(q, k, causal) - sums.unsqueeze(-1)).exp_();
  const at::Tensor dv = at::matmul(weights.to(type).transpose(2, 3), dmixed);
  const at::Tensor own = (dmixed.to(wide) * mixed.to(wide)).sum(-1, /*keepdim=*/true);
  const at::Tensor dscores = (weights * (at::matmul(dmixed, v.transpose(2, 3)).to(wide) - own))
                                 .div_(std::sqrt(static_cast<double>(q.size(3))))
                                 .to(type);
  return {at::matmul(dscores, k), at::matmul(dscores.transpose(2, 3), q), dv};
}

// Blocks that are put together by their sums (Milakov and Gimelshein, arXiv:1805.02867).
void combine(const at::Tensor& mixed, const at::Tensor& sums, const at::Tensor& further,
             const at::Tensor& further_sums) {
  const at::Tensor together = at::logaddexp(sums, further_sums);
  mixed.mul_((sums - together).exp_().unsqueeze(-1));
  mixed.addcmul_(further.to(mixed.scalar_type()), (further_sums - together).exp_().unsqueeze(-1));
  sums.copy_(together);
}

// work(first head of keys, how many of them), for all of them; on a device at once.
template <typename Work>
void in_pieces(const RunBlock& one, const at::Tensor& keys, int64_t group, const Between& between,
               Work work) {
  const int64_t key_heads = keys.size(1);
  const int64_t step =
      keys.is_cpu() ? key_heads_at_a_time(one, key_heads, group, keys.size(2)) : key_heads;
  for (int64_t head = 0; head < key_heads; head += step) {
    work(head, std::min(step, key_heads - head));
    if (between) between();
  }
}

}  // namespace

void attend_block(const BlockPlace& place, const at::Tensor& queries, const at::Tensor& keys,
                  const at::Tensor& values, const Seen& seen, const Between& between) {
  const int64_t group = queries.size(1) / keys.size(1);
  for (const RunBlock& one : blocks_of(place)) {
    const at::Tensor q = one.queries(queries), k = one.keys(keys), v = one.keys(values),
                     mixed = one.queries(seen.mixed), sums = one.queries(seen.sums);
    in_pieces(one, keys, group, between, [&](int64_t head, int64_t count) {
      const int64_t first = head * group, many = count * group;
      const auto [more, more_sums] = attend(
          by_heads(q.narrow(2, first, many)), by_heads_for_all(k.narrow(2, head, count), group),
          by_heads_for_all(v.narrow(2, head, count), group), one.block.causal);
      const at::Tensor further = more.transpose(1, 2), further_sums = more_sums.transpose(1, 2);
      const at::Tensor to = mixed.narrow(2, first, many), to_sums = sums.narrow(2, first, many);
      if (one.block.causal) {
        to.copy_(further);
        to_sums.copy_(further_sums);
      } else {
        combine(to, to_sums, further, further_sums);
      }
    });
  }
}

void block_gradients(const BlockPlace& place, const Attended& of, const at::Tensor& keys,
                     const at::Tensor& values, const at::Tensor& dqueries, const at::Tensor& dkeys,
                     const at::Tensor& dvalues, const Between& between) {
  const int64_t group = of.queries.size(1) / keys.size(1);
  for (const RunBlock& one : blocks_of(place)) {
    const at::Tensor q = one.queries(of.queries), mixed = one.queries(of.mixed),
                     dmixed = one.queries(of.dmixed), sums = one.queries(of.sums),
                     k = one.keys(keys), v = one.keys(values), dq = one.queries(dqueries),
                     dk = one.keys(dkeys), dv = one.keys(dvalues);
    in_pieces(one, keys, group, between, [&](int64_t head, int64_t count) {
      const int64_t first = head * group, many = count * group;
      const auto of_queries = [&](const at::Tensor& x) { return x.narrow(2, first, many); };
      const auto of_keys = [&](const at::Tensor& x) { return x.narrow(2, head, count); };
      const auto [a, b, c] = attend_backward(
          by_heads(of_queries(dmixed)), by_heads(of_queries(q)),
          by_heads_for_all(of_keys(k), group), by_heads_for_all(of_keys(v), group),
          by_heads(of_queries(mixed)), by_heads(of_queries(sums)), one.block.causal);
      of_queries(dq).add_(a.transpose(1, 2));
      add_of_group(b, group, of_keys(dk));
      add_of_group(c, group, of_keys(dv));
    });
  }
}

}  // namespace lockstep::inline v0::internal
