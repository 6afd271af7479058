#include "lockstep/model/internal/layer_passes.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lockstep/model/internal/layer_math.h"
#include "lockstep/model/internal/products.h"

namespace lockstep::internal {
namespace {

// Queries, keys and values are thirds of a matrix: `parts` of them from `begin` on.
at::Tensor thirds(const at::Tensor& weight, int64_t begin, int64_t parts) {
  const int64_t width = weight.size(0) / 3;
  return weight.narrow(0, begin * width, parts * width);
}

struct WeightAndBias {
  at::Tensor* weight;
  at::Tensor* bias;
};

// The gradients of the weights and biases whose outputs lie side by side in dy.
void give_parts(const at::Tensor& dy, const at::Tensor& dy_columns, const at::Tensor& x,
                bool wanted, const std::vector<WeightAndBias>& to) {
  const at::Tensor bias = column_sums(dy);
  const at::Tensor weight = wanted ? weight_gradient(dy, dy_columns, x) : at::Tensor();
  const int64_t width = x.size(1);
  for (size_t i = 0; i < to.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) * width;
    if (wanted) *to[i].weight = weight.narrow(0, at, width);
    *to[i].bias = bias.narrow(0, at, width);
  }
}

}  // namespace

std::vector<at::Tensor*> LayerSaved::all() {
  return {
      &typed_x,      &asking,   &typed_asking,   &qkv,        &queries,    &attention_statistics,
      &mixed,        &mix,      &mix_statistics, &y,          &typed_y,    &slope,
      &active,       &outer,    &statistics,     &qkv_weight, &mix_weight, &inner_weight,
      &outer_weight, &mix_bias, &mix_gamma,      &mix_beta,   &outer_bias, &gamma,
      &beta};
}

LayerPasses::Turned LayerPasses::Turned::columns_from(int64_t begin, int64_t count) const {
  return {rows.narrow(1, begin, count),
          columns.defined() ? columns.narrow(0, begin, count) : columns};
}

LayerPasses::Turned LayerPasses::turned_like(const at::Tensor& tensor) const {
  const int64_t rows = tensor.size(0), columns = tensor.size(1);
  return {empty_rows(rows, columns, type()),
          plan_.in_bfloat16 ? empty_columns(rows, columns) : at::Tensor()};
}

at::Tensor LayerPasses::typed(const std::vector<at::Tensor>& tensors) const {
  if (plan_.in_bfloat16) return rounded(tensors);
  return tensors.size() == 1 ? tensors[0] : at::cat(tensors);
}

kernels::Norm LayerPasses::norm(const at::Tensor& x, const at::Tensor& bias,
                                const at::Tensor& residual, const at::Tensor& gamma,
                                const at::Tensor& beta, const kernels::Dropout& dropout) const {
  kernels::Norm n;
  n.width = residual.size(1);
  n.type = kernel_type(type());
  n.x = x.const_data_ptr();
  n.bias = bias.const_data_ptr<float>();
  n.residual = residual.const_data_ptr<float>();
  n.before = dropout;
  n.gamma = gamma.const_data_ptr<float>();
  n.beta = beta.const_data_ptr<float>();
  n.epsilon = static_cast<float>(plan_.epsilon);
  return n;
}

kernels::Norm LayerPasses::mix_norm() const {
  return norm(s_.mix, s_.mix_bias, s_.asking, s_.mix_gamma, s_.mix_beta, plan_.mix_dropout);
}

kernels::Norm LayerPasses::outer_norm() const {
  return norm(s_.outer, s_.outer_bias, s_.y, s_.gamma, s_.beta, plan_.outer_dropout);
}

void LayerPasses::take(const LayerRows& x, const LayerParameters& p) {
  s_.typed_x = plan_.in_bfloat16 ? x.rounded : x.exact;
  s_.asking = x.exact;
  s_.typed_asking = s_.typed_x;
  if (plan_.first.defined()) {
    s_.asking = x.exact.index_select(0, plan_.first);
    s_.typed_asking = plan_.in_bfloat16 ? x.rounded.index_select(0, plan_.first) : s_.asking;
  }
  s_.qkv_weight = typed({p.query_weight, p.key_weight, p.value_weight});
  s_.mix_weight = typed({p.mix_weight});
  s_.inner_weight = typed({p.inner_weight});
  s_.outer_weight = typed({p.outer_weight});
  s_.mix_bias = p.mix_bias;
  s_.mix_gamma = p.mix_gamma;
  s_.mix_beta = p.mix_beta;
  s_.outer_bias = p.outer_bias;
  s_.gamma = p.gamma;
  s_.beta = p.beta;
}

// Queries, keys and values.
void LayerPasses::project(const LayerParameters& p) {
  const at::Tensor bias = typed({p.query_bias, p.key_bias, p.value_bias});
  const int64_t rows = s_.typed_x.size(0), width = s_.typed_x.size(1);
  if (!plan_.first.defined()) {
    s_.qkv = empty_rows(rows, 3 * width, type());
    affine_into(s_.qkv, s_.typed_x, s_.qkv_weight, bias);
    s_.queries = s_.qkv.narrow(1, 0, width);
    return;
  }
  s_.queries = empty_rows(s_.asking.size(0), width, type());
  affine_into(s_.queries, s_.typed_asking, thirds(s_.qkv_weight, 0, 1), thirds(bias, 0, 1));
  s_.qkv = empty_rows(rows, 2 * width, type());
  affine_into(s_.qkv, s_.typed_x, thirds(s_.qkv_weight, 1, 2), thirds(bias, 1, 2));
}

Heads LayerPasses::heads() const {
  const int64_t width = s_.queries.size(1), columns = s_.qkv.size(1);
  return {s_.queries,
          s_.qkv.narrow(1, columns - 2 * width, width),
          s_.qkv.narrow(1, columns - width, width),
          plan_.layout.get(),
          plan_.heads,
          plan_.weights_dropout};
}

LayerRows LayerPasses::forward(const LayerRows& x, const LayerParameters& p, bool differentiable) {
  take(x, p);
  project(p);
  const int64_t rows = s_.asking.size(0), width = s_.asking.size(1);
  s_.mixed = empty_rows(rows, width, type());
  s_.attention_statistics = at::empty({2, plan_.heads, rows}, at::kFloat);
  heads_forward(heads(), s_.mixed, s_.attention_statistics);
  s_.mix = times_transposed(s_.mixed, s_.mix_weight);
  const Normed normed = norm_rows(mix_norm(), rows, plan_.in_bfloat16);
  s_.y = normed.y;
  s_.typed_y = normed.typed();
  s_.mix_statistics = normed.statistics;
  s_.slope = times_transposed(s_.typed_y, s_.inner_weight);  // which it becomes
  s_.active = activate_rows(s_.slope, p.inner_bias, plan_.activation, differentiable);
  s_.outer = times_transposed(s_.active, s_.outer_weight);
  const Normed result = norm_rows(outer_norm(), rows, plan_.in_bfloat16);
  s_.statistics = result.statistics;
  return {result.y, result.rounded};
}

// sum += dy weight; in bfloat16 the product is left in `product` for whoever reads both.
void LayerPasses::add_product(const at::Tensor& sum, at::Tensor& product, const at::Tensor& dy,
                              const at::Tensor& weight) const {
  if (plan_.in_bfloat16)
    product = times(dy, weight);
  else
    at::Tensor(sum).addmm_(dy, weight);
}

LayerGradients LayerPasses::backward(const LayerRows& dy, const LayerWanted& wanted) const {
  LayerGradients result;
  LayerParameters& d = result.parameters;
  const NormBackward outer = norm_rows_backward(outer_norm(), s_.statistics, dy.exact, dy.rounded,
                                                /*dz=*/{}, /*has_x=*/true);
  d.outer_bias = outer.dbias, d.gamma = outer.dgamma, d.beta = outer.dbeta;
  if (wanted.outer) d.outer_weight = weight_gradient(outer.dx, outer.dx_columns, s_.active);
  const at::Tensor dinner = times(outer.dx, s_.outer_weight);
  const ActivateBackward active = activate_rows_backward(s_.slope, dinner);
  d.inner_bias = active.dbias;
  if (wanted.inner) d.inner_weight = weight_gradient(dinner, active.dx_columns, s_.typed_y);
  at::Tensor typed_dy;
  add_product(outer.dz, typed_dy, dinner, s_.inner_weight);
  const NormBackward mix = norm_rows_backward(mix_norm(), s_.mix_statistics, outer.dz, typed_dy,
                                              /*dz=*/outer.dz, /*has_x=*/true);
  d.mix_bias = mix.dbias, d.mix_gamma = mix.dgamma, d.mix_beta = mix.dbeta;
  if (wanted.mix) d.mix_weight = weight_gradient(mix.dx, mix.dx_columns, s_.mixed);
  result.x = backward_heads(times(mix.dx, s_.mix_weight), mix.dz, wanted.qkv, d);
  return result;
}

LayerRows LayerPasses::backward_heads(const at::Tensor& dmixed, const at::Tensor& dasking,
                                      bool wanted, LayerParameters& d) const {
  const int64_t width = s_.queries.size(1);
  const bool few = plan_.first.defined();
  const Turned qkv = turned_like(s_.qkv);
  const Turned queries = few ? turned_like(s_.queries) : qkv.columns_from(0, width);
  const int64_t at = few ? 0 : width;
  const Turned keys = qkv.columns_from(at, width), values = qkv.columns_from(at + width, width);
  heads_backward(
      heads(), s_.attention_statistics, dmixed,
      {queries.rows, keys.rows, values.rows, queries.columns, keys.columns, values.columns});
  const WeightAndBias for_queries{&d.query_weight, &d.query_bias},
      for_keys{&d.key_weight, &d.key_bias}, for_values{&d.value_weight, &d.value_bias};
  if (!few) {
    give_parts(qkv.rows, qkv.columns, s_.typed_x, wanted, {for_queries, for_keys, for_values});
    LayerRows dx{dasking, {}};
    add_product(dx.exact, dx.rounded, qkv.rows, s_.qkv_weight);
    return dx;
  }
  give_parts(queries.rows, queries.columns, s_.typed_asking, wanted, {for_queries});
  give_parts(qkv.rows, qkv.columns, s_.typed_x, wanted, {for_keys, for_values});
  return all_rows(queries, qkv, dasking);
}

// The gradient of every row where the layer was computed for few.
LayerRows LayerPasses::all_rows(const Turned& queries, const Turned& others,
                                const at::Tensor& dasking) const {
  LayerRows dx{at::zeros({s_.typed_x.size(0), s_.typed_x.size(1)}, at::kFloat), {}};
  dx.exact.index_copy_(0, plan_.first, dasking);
  add_product(dx.exact, dx.rounded, others.rows, thirds(s_.qkv_weight, 1, 2));
  (plan_.in_bfloat16 ? dx.rounded : dx.exact)
      .index_add_(0, plan_.first, times(queries.rows, thirds(s_.qkv_weight, 0, 1)));
  return dx;
}

}  // namespace lockstep::internal
