#include "lockstep/model/internal/expert_nodes.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/device/memory.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/model/internal/layer_math.h"
#include "lockstep/model/internal/products.h"

namespace lockstep::inline v0::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RoutedHandle final : torch::CustomClassHolder {
  explicit RoutedHandle(std::shared_ptr<const RoutedRows> routed) : routed(std::move(routed)) {}
  std::shared_ptr<const RoutedRows> routed;
};

const RoutedRows& routed_of(AutogradContext* context) {
  const auto capsule = context->saved_data["routed"].toCapsule();
  return *static_cast<const RoutedHandle&>(*capsule).routed;
}

at::Tensor index_tensor(const std::vector<int64_t>& of) {
  return at::tensor(of, at::kLong);
}

// The sums that are kept beside each other until the end, so that one instruction adds several.
constexpr int64_t kLanes = 16;

template <typename T>
float dot(const T* a, const T* b, int64_t width) {
  std::array<float, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      sums[static_cast<size_t>(lane)] +=
          static_cast<float>(a[i + lane]) * static_cast<float>(b[i + lane]);
  for (; i < width; ++i) sums[0] += static_cast<float>(a[i]) * static_cast<float>(b[i]);
  float sum = 0;
  for (const float one : sums) sum += one;
  return sum;
}

// For tokens [begin, end): out = sum over choices of weight * rows; without weights, their sum.
template <typename T>
void add_choices(const RoutedRows& routed, int64_t chosen, const T* rows, const float* weights,
                 T* out, int64_t width, int64_t begin, int64_t end) {
  std::vector<float> sum(static_cast<size_t>(width));
  for (int64_t token = begin; token < end; ++token) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (int64_t j = 0; j < chosen; ++j) {
      const int64_t place = routed.places[static_cast<size_t>(token * chosen + j)];
      if (place < 0) continue;
      const T* const row = rows + place * width;
      const float weight = weights == nullptr ? 1.0F : weights[token * chosen + j];
      for (int64_t i = 0; i < width; ++i)
        sum[static_cast<size_t>(i)] += weight * static_cast<float>(row[i]);
    }
    T* const to = out + token * width;
    for (int64_t i = 0; i < width; ++i) to[i] = static_cast<T>(sum[static_cast<size_t>(i)]);
  }
}

template <typename T>
void spread_choices(const RoutedRows& routed, int64_t chosen, const T* dout, const T* rows,
                    const float* weights, T* drows, float* dweights, int64_t width, int64_t begin,
                    int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    const T* const from = dout + token * width;
    for (int64_t j = 0; j < chosen; ++j) {
      const int64_t choice = token * chosen + j;
      const int64_t place = routed.places[static_cast<size_t>(choice)];
      dweights[choice] = place < 0 ? 0 : dot(from, rows + place * width, width);
      if (place < 0) continue;
      T* const to = drows + place * width;
      const float weight = weights[choice];
      for (int64_t i = 0; i < width; ++i)
        to[i] = static_cast<T>(weight * static_cast<float>(from[i]));
    }
  }
}

// float32 or bfloat16: what the arithmetic of nodes has.
template <typename Body>
void by_type(at::ScalarType type, const Body& body) {
  if (type == at::kBFloat16)
    body(at::BFloat16());
  else
    body(float());
}

at::Tensor added_choices(const at::Tensor& rows, const float* weights, const RoutedRows& routed,
                         int64_t tokens) {
  const int64_t width = rows.size(1);
  const at::Tensor out = empty_rows(tokens, width, rows.scalar_type());
  if (tokens == 0) return out;
  const int64_t chosen = static_cast<int64_t>(routed.places.size()) / tokens;
  by_type(rows.scalar_type(), [&](auto of) {
    using T = decltype(of);
    const T* const from = rows.const_data_ptr<T>();
    T* const to = out.mutable_data_ptr<T>();
    kernels::in_parallel(tokens, kRowsAtATime, at::get_num_threads(),
                         [&](int64_t begin, int64_t end) {
                           add_choices(routed, chosen, from, weights, to, width, begin, end);
                         });
  });
  return out;
}

class SortedRowsNode final : public torch::autograd::Function<SortedRowsNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<RoutedHandle>& routed) {
    context->saved_data["routed"] = c10::IValue::make_capsule(routed);
    context->saved_data["tokens"] = x.size(0);
    return x.index_select(0, index_tensor(routed->routed->tokens));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_gradient("TransformerLm");
    return {added_choices(gradients[0].contiguous(), nullptr, routed_of(context),
                          context->saved_data["tokens"].toInt()),
            at::Tensor()};
  }
};

class WeightedRowsNode final : public torch::autograd::Function<WeightedRowsNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weights,
                            const c10::intrusive_ptr<RoutedHandle>& routed) {
    const at::Tensor whole = rows.contiguous(), flat = weights.contiguous();
    context->saved_data["routed"] = c10::IValue::make_capsule(routed);
    context->save_for_backward({whole, flat});
    return added_choices(whole, flat.const_data_ptr<float>(), *routed->routed, weights.size(0));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_gradient("TransformerLm");
    const RoutedRows& routed = routed_of(context);
    const auto saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &weights = saved[1];
    const at::Tensor dout = gradients[0].contiguous();
    const at::Tensor drows = at::empty_like(rows), dweights = at::empty_like(weights);
    const int64_t tokens = weights.size(0), chosen = weights.size(1), width = rows.size(1);
    by_type(rows.scalar_type(), [&](auto of) {
      using T = decltype(of);
      const T *const from = dout.const_data_ptr<T>(), *const computed = rows.const_data_ptr<T>();
      T* const to = drows.mutable_data_ptr<T>();
      kernels::in_parallel(
          tokens, kRowsAtATime, at::get_num_threads(), [&](int64_t begin, int64_t end) {
            spread_choices(routed, chosen, from, computed, weights.const_data_ptr<float>(), to,
                           dweights.mutable_data_ptr<float>(), width, begin, end);
          });
    });
    return {drows, dweights, at::Tensor()};
  }
};

// ---- products ----

struct GroupedWork final : torch::CustomClassHolder {
  std::shared_ptr<DeferredGradients> deferred;
  std::vector<int64_t> counts;
  std::vector<std::vector<at::Tensor>> weights;
};

// bfloat16's products are compiled anew for every number of rows (products.h): few numbers, then.
at::Tensor tile_rows(const at::Tensor& x) {
  const int64_t rows = x.size(0), missing = (kTileRows - rows % kTileRows) % kTileRows;
  if (x.scalar_type() != at::kBFloat16 || missing == 0) return x;
  return at::cat({x, at::zeros({missing, x.size(1)}, x.options())});
}

// out = a b, row by row of a.
void rows_times(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool adds) {
  at::Tensor to = out;
  if (a.scalar_type() == at::kBFloat16 && a.size(0) % kTileRows != 0) {
    const at::Tensor tiled = at::mm(tile_rows(a), b).narrow(0, 0, a.size(0));
    if (adds)
      to.add_(tiled);
    else
      to.copy_(tiled);
    return;
  }
  if (adds)
    to.addmm_(a, b);
  else
    at::mm_out(to, a, b);
}

at::Tensor expert_gradient(const at::Tensor& dy, const at::Tensor& x) {
  if (dy.size(0) == 0) return at::zeros({dy.size(1), x.size(1)}, at::kFloat);
  const at::Tensor gradient = at::mm(tile_rows(dy).t(), tile_rows(x));
  return gradient.scalar_type() == at::kFloat ? gradient : gradient.to(at::kFloat);
}

class GroupedProductsNode final : public torch::autograd::Function<GroupedProductsNode> {
 public:
  // inputs: x, then each product's weights, expert by expert.
  static variable_list forward(AutogradContext* context, at::TensorList inputs, bool in_bfloat16,
                               const c10::intrusive_ptr<GroupedWork>& work) {
    const auto guard = without_autocast();
    const at::Tensor& x = inputs[0];
    variable_list kept{x}, results;
    size_t next = 1;
    for (const auto& weights : work->weights) {
      const at::Tensor y = empty_rows(x.size(0), weights[0].size(0), x.scalar_type());
      int64_t row = 0;
      for (size_t e = 0; e < weights.size(); ++e) {
        const at::Tensor& exact = inputs[next++];
        kept.push_back(in_bfloat16 ? rounded({exact}) : exact);
        const int64_t count = work->counts[e];
        if (count > 0)
          rows_times(y.narrow(0, row, count), x.narrow(0, row, count), kept.back().t(), false);
        row += count;
      }
      results.push_back(y);
    }
    context->save_for_backward(std::move(kept));
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    context->set_materialize_grads(false);
    return results;
  }

  static variable_list backward(AutogradContext* context, variable_list dys) {
    refuse_second_gradient("TransformerLm");
    const auto guard = without_autocast();
    const auto kept = context->get_saved_variables();
    const auto work =
        c10::static_intrusive_pointer_cast<GroupedWork>(context->saved_data["work"].toCapsule());
    const at::Tensor& x = kept[0];
    variable_list result(kept.size() + 2);  // and what is no tensor
    const bool wants_rows = context->needs_input_grad(0);
    if (wants_rows) result[0] = empty_rows(x.size(0), x.size(1), x.scalar_type());
    bool written = false;
    size_t at = 1;
    for (size_t i = 0; i < dys.size(); ++i) {
      const auto& weights = work->weights[i];
      if (!dys[i].defined()) {
        at += weights.size();
        continue;
      }
      const at::Tensor dy = dys[i].contiguous();
      int64_t row = 0;
      for (size_t e = 0; e < weights.size(); ++e, ++at) {
        const int64_t count = work->counts[e];
        const at::Tensor mine = dy.narrow(0, row, count), rows = x.narrow(0, row, count);
        if (wants_rows && count > 0)
          rows_times(result[0].narrow(0, row, count), mine, kept[at], written);
        row += count;
        if (work->deferred) {
          if (weights[e].requires_grad())
            work->deferred->add(
                weights[e], [mine, rows = rows.detach()] { return expert_gradient(mine, rows); });
        } else if (context->needs_input_grad(at)) {
          result[at] = expert_gradient(mine, rows);
        }
      }
      written = true;
    }
    if (!written) result[0] = at::Tensor();
    return result;
  }
};

}  // namespace

at::Tensor sorted_rows(const at::Tensor& x, const std::shared_ptr<const RoutedRows>& routed,
                       Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kComposed)
    return x.index_select(0, device::copy_to(index_tensor(routed->tokens), x.device()));
  return SortedRowsNode::apply(x, c10::make_intrusive<RoutedHandle>(routed));
}

at::Tensor weighted_rows(const at::Tensor& rows, const at::Tensor& weights,
                         const std::shared_ptr<const RoutedRows>& routed, Arithmetic arithmetic) {
  if (arithmetic != Arithmetic::kComposed)
    return WeightedRowsNode::apply(rows, weights, c10::make_intrusive<RoutedHandle>(routed));
  const at::Tensor places = device::copy_to(index_tensor(routed->places), rows.device());
  const at::Tensor out = places.lt(0);
  // What was left out, or is padding, reads a row of zeros behind the others.
  const at::Tensor with_zeros = rows.size(0) == places.numel()
                                    ? rows
                                    : at::cat({rows, at::zeros({1, rows.size(1)}, rows.options())});
  const at::Tensor picked = with_zeros.index_select(0, places.masked_fill(out, rows.size(0)))
                                .view({weights.size(0), weights.size(1), rows.size(1)});
  return (picked * weights.to(rows.scalar_type()).unsqueeze(2)).sum(1);
}

std::vector<at::Tensor> grouped_products(const at::Tensor& x, const std::vector<int64_t>& counts,
                                         const std::vector<std::vector<at::Tensor>>& weights,
                                         Arithmetic arithmetic,
                                         std::shared_ptr<DeferredGradients> deferred) {
  if (arithmetic == Arithmetic::kComposed) {
    std::vector<at::Tensor> results;
    const std::vector<at::Tensor> parts = x.split_with_sizes(counts);
    for (const auto& of : weights) {
      std::vector<at::Tensor> ys;
      for (size_t e = 0; e < of.size(); ++e) ys.push_back(at::linear(parts[e], of[e]));
      results.push_back(at::cat(ys));
    }
    return results;
  }
  variable_list inputs{x.contiguous()};
  // As in products(): a gradient that comes later does not come now.
  const bool alone = deferred && x.requires_grad();
  for (const auto& of : weights)
    for (const at::Tensor& weight : of) inputs.push_back(alone ? weight.detach() : weight);
  auto work = c10::make_intrusive<GroupedWork>();
  work->deferred = std::move(deferred);
  work->counts = counts;
  work->weights = weights;
  return GroupedProductsNode::apply(at::TensorList(inputs), arithmetic == Arithmetic::kBFloat16,
                                    work);
}

}  // namespace lockstep::inline v0::internal
