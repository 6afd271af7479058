#include "lockstep/model/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

namespace lockstep {
namespace {

// Rows [begin, begin + count) as [heads, count, width], without a copy.
at::Tensor heads_of(const at::Tensor& rows, int64_t begin, int64_t count, int64_t heads) {
  return rows.narrow(0, begin, count).view({count, heads, rows.size(1) / heads}).transpose(0, 1);
}

struct SpanWeights {
  at::Tensor weights;  // [heads, queries, keys], after the softmax
  at::Tensor kept;     // likewise: 0, or 1 / (1 - dropout); undefined without dropout
  at::Tensor used() const { return kept.defined() ? weights * kept : weights; }
};

using SavedWeights = std::vector<SpanWeights>;

SpanWeights weigh(const at::Tensor& q, const at::Tensor& k, const at::Tensor& bias,
                  double dropout) {
  at::Tensor scores = at::bmm(q, k.transpose(1, 2));
  scores.mul_(1 / std::sqrt(static_cast<double>(q.size(2))));
  if (bias.defined()) scores.add_(bias);
  SpanWeights span{at::softmax(scores, -1), {}};
  if (dropout > 0) {
    span.kept = at::empty_like(span.weights);
    span.kept.bernoulli_(1 - dropout).div_(1 - dropout);
  }
  return span;
}

// The products of all spans as one node of the graph: what is between them would otherwise be a
// dozen nodes a span.
class ByProducts : public torch::autograd::Function<ByProducts> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& queries,
                            const at::Tensor& keys, const at::Tensor& values,
                            const std::shared_ptr<const AttentionLayout>& layout,
                            const AttentionOptions& options) {
    auto saved = std::make_shared<SavedWeights>();
    const at::Tensor result = at::empty_like(queries);
    for (size_t i = 0; i < layout->spans.size(); ++i) {
      const AttentionSpan& span = layout->spans[i];
      at::Tensor bias;
      if (layout->bias.defined())
        bias = layout->bias[static_cast<int64_t>(i)].narrow(0, 0, span.keys);
      const SpanWeights weights =
          weigh(heads_of(queries, span.query_begin, span.queries, options.heads),
                heads_of(keys, span.key_begin, span.keys, options.heads), bias, options.dropout);
      heads_of(result, span.query_begin, span.queries, options.heads)
          .copy_(
              at::bmm(weights.used(), heads_of(values, span.key_begin, span.keys, options.heads)));
      saved->push_back(weights);
    }
    context->save_for_backward({queries, keys, values});
    context->saved_data["heads"] = options.heads;
    context->saved_data["work"] =
        c10::IValue::make_capsule(c10::make_intrusive<Work>(layout, saved));
    return result;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto inputs = context->get_saved_variables();
    const int64_t heads = context->saved_data["heads"].toInt();
    const auto work =
        c10::static_intrusive_pointer_cast<Work>(context->saved_data["work"].toCapsule());
    const at::Tensor& from = gradients[0];
    // Rows outside of all spans are padding: their gradient is 0.
    const at::Tensor dq = at::empty_like(inputs[0]), dk = at::zeros_like(inputs[1]),
                     dv = at::zeros_like(inputs[2]);
    for (size_t i = 0; i < work->layout->spans.size(); ++i) {
      const AttentionSpan& span = work->layout->spans[i];
      const SpanWeights& weights = (*work->weights)[i];
      const at::Tensor q = heads_of(inputs[0], span.query_begin, span.queries, heads);
      const at::Tensor k = heads_of(inputs[1], span.key_begin, span.keys, heads);
      const at::Tensor v = heads_of(inputs[2], span.key_begin, span.keys, heads);
      const at::Tensor out = heads_of(from, span.query_begin, span.queries, heads);
      heads_of(dv, span.key_begin, span.keys, heads)
          .copy_(at::bmm(weights.used().transpose(1, 2), out));
      at::Tensor dp = at::bmm(out, v.transpose(1, 2));
      if (weights.kept.defined()) dp.mul_(weights.kept);
      const at::Tensor ds = at::_softmax_backward_data(dp, weights.weights, -1, dp.scalar_type())
                                .mul_(1 / std::sqrt(static_cast<double>(q.size(2))));
      heads_of(dq, span.query_begin, span.queries, heads).copy_(at::bmm(ds, k));
      heads_of(dk, span.key_begin, span.keys, heads).copy_(at::bmm(ds.transpose(1, 2), q));
    }
    return {dq, dk, dv, at::Tensor(), at::Tensor()};
  }

 private:
  struct Work : torch::CustomClassHolder {
    Work(std::shared_ptr<const AttentionLayout> the_layout,
         std::shared_ptr<const SavedWeights> the_weights)
        : layout(std::move(the_layout)), weights(std::move(the_weights)) {}
    std::shared_ptr<const AttentionLayout> layout;
    std::shared_ptr<const SavedWeights> weights;
  };
};

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

// On other devices than the CPU, where a call costs more than what it computes in vain.
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

at::Tensor fused(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                 const AttentionLayout& layout, int64_t heads) {
  std::vector<at::Tensor> results;
  for (const AttentionSpan& span : layout.spans) {
    const at::Tensor mixed = at::scaled_dot_product_attention(
        heads_of(queries, span.query_begin, span.queries, heads).unsqueeze(0),
        heads_of(keys, span.key_begin, span.keys, heads).unsqueeze(0),
        heads_of(values, span.key_begin, span.keys, heads).unsqueeze(0));
    results.push_back(mixed.squeeze(0).transpose(0, 1).reshape({span.queries, queries.size(1)}));
  }
  return at::cat(results);
}

}  // namespace

at::Tensor attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                     const AttentionLayout& layout, const AttentionOptions& options) {
  if (!queries.is_cpu()) return by_runs(queries, keys, values, layout, options);
  const bool is_long = std::all_of(layout.spans.begin(), layout.spans.end(),
                                   [](const auto& span) { return span.keys >= kFusedFrom; });
  if (is_long && !layout.spans.empty() && options.dropout == 0 && !layout.bias.defined())
    return fused(queries, keys, values, layout, options.heads);
  return ByProducts::apply(queries, keys, values, std::make_shared<const AttentionLayout>(layout),
                           options);
}

}  // namespace lockstep
