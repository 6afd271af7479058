#include "lockstep/model/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>
#include <optional>

#include "lockstep/kernels/dropout.h"
#include "lockstep/model/internal/lm_nodes.h"
#include "lockstep/model/internal/undrawn.h"

namespace lockstep::inline v0 {
namespace {

// Rows [begin, begin + count) as [heads, count, width], without a copy.
at::Tensor heads_of(const at::Tensor& rows, int64_t begin, int64_t count, int64_t heads) {
  return rows.narrow(0, begin, count).view({count, heads, rows.size(1) / heads}).transpose(0, 1);
}

// Spans that one call computes: alike, end to end.
struct Alike {
  size_t begin = 0, end = 0;
};

std::vector<Alike> alike(const std::vector<AttentionSpan>& spans) {
  std::vector<Alike> result;
  for (size_t i = 0; i < spans.size(); ++i) {
    const bool goes_on = i > 0 && spans[i].queries == spans[i - 1].queries &&
                         spans[i].keys == spans[i - 1].keys &&
                         spans[i].key_begin == spans[i - 1].key_begin + spans[i].keys;
    if (goes_on)
      ++result.back().end;
    else
      result.push_back({i, i + 1});
  }
  return result;
}

// `count` pieces of `rows` rows each as [count, heads, rows, width], without a copy.
at::Tensor pieces_of(const at::Tensor& all, int64_t begin, int64_t count, int64_t rows,
                     int64_t heads) {
  // A part of rows costs backward operations that all of them do not.
  const at::Tensor own = all.size(0) == count * rows ? all : all.narrow(0, begin, count * rows);
  return own.view({count, rows, heads, all.size(1) / heads}).transpose(1, 2);
}

at::Tensor by_runs(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                   const AttentionLayout& layout, const AttentionOptions& options) {
  std::vector<at::Tensor> results;
  for (const auto& [begin, end] : alike(layout.spans)) {
    const AttentionSpan& span = layout.spans[begin];
    const auto count = static_cast<int64_t>(end - begin);
    const auto of = [&](const at::Tensor& x) {
      return pieces_of(x, span.key_begin, count, span.keys, options.heads);
    };
    std::optional<at::Tensor> bias;
    if (layout.bias.defined()) {
      bias = layout.bias.narrow(0, static_cast<int64_t>(begin), count).narrow(1, 0, span.keys);
      // A row that hides everything stays finite: the least float32 is none of the 16-bit types'.
      if (queries.scalar_type() == at::kHalf)
        bias = bias->clamp_min(static_cast<double>(std::numeric_limits<at::Half>::lowest()));
      else if (queries.scalar_type() == at::kBFloat16)
        bias = bias->clamp_min(static_cast<double>(std::numeric_limits<at::BFloat16>::lowest()));
      bias = bias->to(queries.scalar_type())
                 .unsqueeze(1)
                 .unsqueeze(1)
                 .expand({count, options.heads, span.queries, span.keys});
    }
    const at::Tensor mixed = at::scaled_dot_product_attention(
        pieces_of(queries, span.query_begin, count, span.queries, options.heads), of(keys),
        of(values), bias, options.dropout);
    results.push_back(mixed.transpose(1, 2).reshape({count * span.queries, queries.size(1)}));
  }
  return results.size() == 1 ? results[0] : at::cat(results);
}

// The mask that is given, or one of the default generator's.
kernels::Dropout mask_of(const AttentionOptions& options) {
  if (options.mask.threshold > 0) return options.mask;
  return kernels::make_dropout(internal::draw_seeds(1)[0], options.dropout);
}

// Computes span by span, so that the weights are at hand: dropout drops by rows of a mask that does
// not depend on which rank has which heads.
at::Tensor by_spans(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                    const AttentionLayout& layout, const AttentionOptions& options) {
  const int64_t heads = options.heads, width = queries.size(1) / heads;
  const kernels::Dropout mask = mask_of(options);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < layout.spans.size(); ++i) {
    const AttentionSpan& span = layout.spans[i];
    const auto seen = [&](const at::Tensor& x) {
      return heads_of(x, span.key_begin, span.keys, heads);
    };
    at::Tensor scores = at::matmul(heads_of(queries, span.query_begin, span.queries, heads),
                                   seen(keys).transpose(1, 2)) *
                        (1 / std::sqrt(static_cast<double>(width)));
    if (layout.bias.defined())
      scores = scores + layout.bias[static_cast<int64_t>(i)].narrow(0, 0, span.keys);
    std::vector<internal::RowPiece> pieces;
    for (int64_t h = options.first_head; h < options.first_head + heads; ++h)
      pieces.push_back({h * queries.size(0) + span.query_begin, span.queries});
    const at::Tensor weights = internal::drop_rows(
        at::softmax(scores, -1).view({heads * span.queries, span.keys}), mask, pieces, 0);
    const at::Tensor mixed = at::matmul(
        weights.view({heads, span.queries, span.keys}).to(values.scalar_type()), seen(values));
    results.push_back(mixed.transpose(0, 1).reshape({span.queries, heads * width}));
  }
  return results.size() == 1 ? results[0] : at::cat(results);
}

}  // namespace

at::Tensor attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                     const AttentionLayout& layout, const AttentionOptions& options) {
  return queries.is_cpu() && options.dropout > 0 ? by_spans(queries, keys, values, layout, options)
                                                 : by_runs(queries, keys, values, layout, options);
}

}  // namespace lockstep::inline v0
