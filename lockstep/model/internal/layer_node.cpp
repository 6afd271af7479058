#include "lockstep/model/internal/layer_node.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/model/internal/heads.h"
#include "lockstep/model/internal/layer_math.h"

namespace lockstep::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr size_t kParameters = 16;

std::vector<at::Tensor> list_of(const LayerParameters& p) {
  return {p.query_weight, p.query_bias, p.key_weight, p.key_bias, p.value_weight, p.value_bias,
          p.mix_weight,   p.mix_bias,   p.mix_gamma,  p.mix_beta, p.inner_weight, p.inner_bias,
          p.outer_weight, p.outer_bias, p.gamma,      p.beta};
}

// What backward needs of forward. "Typed" tensors are of the type that products are done in.
struct Saved {
  at::Tensor typed_x;       // [rows, width]
  at::Tensor asking;        // float32: the rows that are computed
  at::Tensor typed_asking;  // likewise
  at::Tensor qkv, queries;  // [rows, 3 width]; only keys and values where the layer asks for few
  at::Tensor attention_statistics;
  at::Tensor mixed, mix;  // attention's result, and its product with mix_weight
  at::Tensor mix_statistics;
  at::Tensor y, typed_y;     // of the first norm
  at::Tensor inner, active;  // before and after the activation
  at::Tensor outer, statistics;
  at::Tensor qkv_weight, mix_weight, inner_weight, outer_weight;  // typed
  at::Tensor mix_bias, mix_gamma, mix_beta, inner_bias, outer_bias, gamma, beta;

  std::vector<at::Tensor*> all() {
    return {
        &typed_x,      &asking,   &typed_asking,   &qkv,        &queries,    &attention_statistics,
        &mixed,        &mix,      &mix_statistics, &y,          &typed_y,    &inner,
        &active,       &outer,    &statistics,     &qkv_weight, &mix_weight, &inner_weight,
        &outer_weight, &mix_bias, &mix_gamma,      &mix_beta,   &inner_bias, &outer_bias,
        &gamma,        &beta};
  }
};

// The rows of queries, keys and values in what qkv_weight makes.
at::Tensor part(const at::Tensor& weight, int64_t begin, int64_t parts) {
  const int64_t width = weight.size(0) / 3;
  return weight.narrow(0, begin * width, parts * width);
}

class Layer {
 public:
  Layer(const LayerPlan& plan, Saved& saved) : plan_(plan), s_(saved) {}

  LayerRows forward(const LayerRows& x, const LayerParameters& p) {
    take_parameters(p);
    s_.typed_x = plan_.in_bfloat16 ? x.rounded : x.exact;
    s_.asking = x.exact;
    s_.typed_asking = s_.typed_x;
    if (plan_.first.defined()) {
      s_.asking = x.exact.index_select(0, plan_.first);
      s_.typed_asking = plan_.in_bfloat16 ? x.rounded.index_select(0, plan_.first) : s_.asking;
    }
    const int64_t rows = s_.asking.size(0), width = s_.asking.size(1);
    project(p);
    s_.mixed = empty_rows(rows, width, type());
    s_.attention_statistics = at::empty({2, plan_.heads, rows}, at::kFloat);
    heads_forward(heads(), s_.mixed, s_.attention_statistics);
    s_.mix = times_transposed(s_.mixed, s_.mix_weight);
    const Normed normed = norm_rows(mix_norm(), rows, plan_.in_bfloat16);
    s_.y = normed.y;
    s_.typed_y = normed.typed();
    s_.mix_statistics = normed.statistics;
    s_.inner = times_transposed(s_.typed_y, s_.inner_weight);
    s_.active = activate_rows(activate(), rows);
    s_.outer = times_transposed(s_.active, s_.outer_weight);
    const Normed result = norm_rows(outer_norm(), rows, plan_.in_bfloat16);
    s_.statistics = result.statistics;
    return {result.y, result.rounded};
  }

  // dy: the gradients of what forward() returned, either undefined. wanted(i): whether parameter i
  // (list_of) needs its gradient.
  struct Gradients {
    LayerRows x;
    std::vector<at::Tensor> parameters;
  };
  template <typename Wanted>
  Gradients backward(const LayerRows& dy, const Wanted& wanted) {
    std::vector<at::Tensor> d(kParameters);
    const NormBackward outer =
        norm_rows_backward(outer_norm(), s_.statistics, dy.exact, dy.rounded, {}, true);
    d[13] = outer.dbias, d[14] = outer.dgamma, d[15] = outer.dbeta;
    if (wanted(12)) d[12] = exact(weight_gradient(outer.dx, outer.dx_columns, s_.active));
    const at::Tensor dinner = times(outer.dx, s_.outer_weight);
    const ActivateBackward active = activate_rows_backward(activate(), dinner);
    d[11] = active.dbias;
    if (wanted(10)) d[10] = exact(weight_gradient(dinner, active.dx_columns, s_.typed_y));
    at::Tensor typed_dy;
    add_product(outer.dz, typed_dy, dinner, s_.inner_weight);
    const NormBackward mix =
        norm_rows_backward(mix_norm(), s_.mix_statistics, outer.dz, typed_dy, outer.dz, true);
    d[7] = mix.dbias, d[8] = mix.dgamma, d[9] = mix.dbeta;
    if (wanted(6)) d[6] = exact(weight_gradient(mix.dx, mix.dx_columns, s_.mixed));
    const LayerRows dx = backward_heads(times(mix.dx, s_.mix_weight), mix.dz, d);
    return {dx, d};
  }

 private:
  at::ScalarType type() const { return plan_.in_bfloat16 ? at::kBFloat16 : at::kFloat; }

  at::Tensor typed(const std::vector<at::Tensor>& tensors) const {
    return plan_.in_bfloat16 ? rounded(tensors) : tensors[0];
  }
  static at::Tensor exact(const at::Tensor& gradient) {
    return gradient.scalar_type() == at::kBFloat16 ? widened(gradient) : gradient;
  }

  void take_parameters(const LayerParameters& p) {
    s_.mix_weight = typed({p.mix_weight});
    s_.inner_weight = typed({p.inner_weight});
    s_.outer_weight = typed({p.outer_weight});
    s_.mix_bias = p.mix_bias;
    s_.mix_gamma = p.mix_gamma;
    s_.mix_beta = p.mix_beta;
    s_.inner_bias = p.inner_bias;
    s_.outer_bias = p.outer_bias;
    s_.gamma = p.gamma;
    s_.beta = p.beta;
  }

  // Queries, keys and values.
  void project(const LayerParameters& p) {
    const std::vector<at::Tensor> weights{p.query_weight, p.key_weight, p.value_weight};
    const std::vector<at::Tensor> biases{p.query_bias, p.key_bias, p.value_bias};
    s_.qkv_weight = plan_.in_bfloat16 ? rounded(weights) : at::cat(weights);
    const at::Tensor bias = plan_.in_bfloat16 ? rounded(biases) : at::cat(biases);
    const int64_t rows = s_.typed_x.size(0), width = s_.typed_x.size(1);
    if (!plan_.first.defined()) {
      s_.qkv = empty_rows(rows, 3 * width, type());
      affine_into(s_.qkv, s_.typed_x, s_.qkv_weight, bias);
      s_.queries = s_.qkv.narrow(1, 0, width);
      return;
    }
    s_.queries = empty_rows(s_.asking.size(0), width, type());
    affine_into(s_.queries, s_.typed_asking, part(s_.qkv_weight, 0, 1), part(bias, 0, 1));
    s_.qkv = empty_rows(rows, 2 * width, type());
    affine_into(s_.qkv, s_.typed_x, part(s_.qkv_weight, 1, 2), part(bias, 1, 2));
  }

  Heads heads() const {
    const int64_t width = s_.queries.size(1), columns = s_.qkv.size(1);
    return {s_.queries,
            s_.qkv.narrow(1, columns - 2 * width, width),
            s_.qkv.narrow(1, columns - width, width),
            plan_.layout.get(),
            plan_.heads,
            plan_.weights_dropout};
  }

  kernels::Norm norm(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                     const at::Tensor& gamma, const at::Tensor& beta,
                     const kernels::Dropout& dropout) const {
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
  kernels::Norm mix_norm() const {
    return norm(s_.mix, s_.mix_bias, s_.asking, s_.mix_gamma, s_.mix_beta, plan_.mix_dropout);
  }
  kernels::Norm outer_norm() const {
    return norm(s_.outer, s_.outer_bias, s_.y, s_.gamma, s_.beta, plan_.outer_dropout);
  }
  kernels::Activate activate() const {
    return {s_.inner.size(1), kernel_type(type()), plan_.activation, s_.inner.const_data_ptr(),
            s_.inner_bias.const_data_ptr<float>()};
  }

  // dy^T x. oneDNN takes twice as long over a left matrix that it has to transpose itself.
  static at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& dy_columns,
                                    const at::Tensor& x) {
    return times(dy_columns.defined() ? dy_columns : dy.t(), x);
  }

  // sum += dy weight; in bfloat16 the product is left in `product` for whoever reads both.
  void add_product(const at::Tensor& sum, at::Tensor& product, const at::Tensor& dy,
                   const at::Tensor& weight) const {
    if (plan_.in_bfloat16)
      product = times(dy, weight);
    else
      at::Tensor(sum).addmm_(dy, weight);
  }

  LayerRows backward_heads(const at::Tensor& dmixed, const at::Tensor& dasking,
                           std::vector<at::Tensor>& d) {
    const int64_t width = s_.queries.size(1);
    const bool few = plan_.first.defined();
    const Turned qkv = turned_like(s_.qkv);
    const Turned queries = few ? turned_like(s_.queries) : qkv.columns_from(0, width);
    const int64_t at = few ? 0 : width;
    const Turned keys = qkv.columns_from(at, width), values = qkv.columns_from(at + width, width);
    heads_backward(
        heads(), s_.attention_statistics, dmixed,
        {queries.rows, keys.rows, values.rows, queries.columns, keys.columns, values.columns});
    if (!few) {
      give_parts(qkv, s_.typed_x, 0, d);
      LayerRows dx{dasking, {}};
      add_product(dx.exact, dx.rounded, qkv.rows, s_.qkv_weight);
      return dx;
    }
    give_parts(queries, s_.typed_asking, 0, d);
    give_parts(qkv, s_.typed_x, 1, d);
    LayerRows dx{at::zeros({s_.typed_x.size(0), width}, at::kFloat), {}};
    dx.exact.index_copy_(0, plan_.first, dasking);
    add_product(dx.exact, dx.rounded, qkv.rows, part(s_.qkv_weight, 1, 2));
    (plan_.in_bfloat16 ? dx.rounded : dx.exact)
        .index_add_(0, plan_.first, times(queries.rows, part(s_.qkv_weight, 0, 1)));
    return dx;
  }

  // A gradient and, in bfloat16, its transpose.
  struct Turned {
    at::Tensor rows, columns;
    Turned columns_from(int64_t begin, int64_t count) const {
      return {rows.narrow(1, begin, count),
              columns.defined() ? columns.narrow(0, begin, count) : columns};
    }
  };
  Turned turned_like(const at::Tensor& tensor) const {
    const int64_t rows = tensor.size(0), columns = tensor.size(1);
    return {empty_rows(rows, columns, type()),
            plan_.in_bfloat16 ? empty_columns(rows, columns) : at::Tensor()};
  }

  // The gradients of the weights and biases of queries, keys, values, from number `begin` on.
  static void give_parts(const Turned& dy, const at::Tensor& x, size_t begin,
                         std::vector<at::Tensor>& d) {
    const at::Tensor weight = weight_gradient(dy.rows, dy.columns, x), bias = column_sums(dy.rows);
    const int64_t width = x.size(1);
    for (int64_t at = 0; at < weight.size(0); at += width, ++begin) {
      d[2 * begin] = exact(weight.narrow(0, at, width));
      d[2 * begin + 1] = bias.narrow(0, at, width);
    }
  }

  const LayerPlan& plan_;
  Saved& s_;
};

struct PlanHolder : torch::CustomClassHolder {
  explicit PlanHolder(std::shared_ptr<const LayerPlan> the_plan) : plan(std::move(the_plan)) {}
  std::shared_ptr<const LayerPlan> plan;
};

// What is called here has its types chosen already.
c10::impl::ExcludeDispatchKeyGuard without_autocast() {
  return c10::impl::ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset);
}

class LayerNode : public torch::autograd::Function<LayerNode> {
 public:
  // inputs: x, rounded x in bfloat16, the parameters.
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const std::shared_ptr<const LayerPlan>& plan,
                               const LayerParameters& parameters) {
    const auto guard = without_autocast();
    Saved saved;
    const LayerRows result =
        Layer(*plan, saved)
            .forward({inputs[0], plan->in_bfloat16 ? inputs[1] : at::Tensor()}, parameters);
    variable_list kept;
    for (const at::Tensor* tensor : saved.all()) kept.push_back(*tensor);
    context->save_for_backward(std::move(kept));
    context->saved_data["plan"] = c10::IValue::make_capsule(c10::make_intrusive<PlanHolder>(plan));
    context->set_materialize_grads(false);
    if (plan->in_bfloat16) return {result.exact, result.rounded};
    return {result.exact};
  }

  static variable_list backward(AutogradContext* context, variable_list dy) {
    if (at::GradMode::is_enabled())
      throw InvalidArgument(
          "BertClassifier: a gradient of the gradient is not computed; call backward without "
          "create_graph");
    const auto guard = without_autocast();
    const auto holder =
        c10::static_intrusive_pointer_cast<PlanHolder>(context->saved_data["plan"].toCapsule());
    const LayerPlan& plan = *holder->plan;
    const size_t inputs = plan.in_bfloat16 ? 2 : 1;
    variable_list result(inputs + kParameters + 2);
    for (at::Tensor& gradient : dy)
      if (gradient.defined()) gradient = gradient.contiguous();
    Saved saved;
    variable_list kept = context->get_saved_variables();
    const auto places = saved.all();
    for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(kept[i]);
    auto gradients = Layer(plan, saved)
                         .backward({dy[0], plan.in_bfloat16 ? dy[1] : at::Tensor()},
                                   [&](size_t i) { return context->needs_input_grad(inputs + i); });
    result[0] = std::move(gradients.x.exact);
    if (plan.in_bfloat16) result[1] = std::move(gradients.x.rounded);
    for (size_t i = 0; i < kParameters; ++i)
      result[inputs + i] = std::move(gradients.parameters[i]);
    return result;
  }
};

}  // namespace

LayerRows layer(const LayerRows& x, const LayerParameters& parameters,
                const std::shared_ptr<const LayerPlan>& plan) {
  std::vector<at::Tensor> inputs{x.exact};
  if (plan->in_bfloat16) inputs.push_back(x.rounded);
  for (const at::Tensor& parameter : list_of(parameters)) inputs.push_back(parameter);
  const variable_list result = LayerNode::apply(at::TensorList(inputs), plan, parameters);
  return {result[0], plan->in_bfloat16 ? result[1] : at::Tensor()};
}

}  // namespace lockstep::internal
