#include "lockstep/model/internal/bert_nodes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/model/internal/arithmetic.h"
#include "lockstep/model/internal/heads.h"
#include "lockstep/model/internal/layer_math.h"
#include "lockstep/model/internal/products.h"

namespace lockstep::inline v0::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr size_t kNone = SIZE_MAX;

// A node's inputs: those that are there, since an undefined one has no place in a graph.
class Inputs {
 public:
  // Where it is.
  size_t put(const at::Tensor& tensor) {
    if (!tensor.defined()) return kNone;
    list_.push_back(tensor);
    return list_.size() - 1;
  }
  at::TensorList list() const { return list_; }
  bool differentiable() const {
    return at::GradMode::is_enabled() &&
           std::any_of(list_.begin(), list_.end(), [](const auto& t) { return t.requires_grad(); });
  }

 private:
  variable_list list_;
};

at::Tensor at_place(at::TensorList inputs, size_t place) {
  return place == kNone ? at::Tensor() : inputs[place];
}

// A gradient and, in bfloat16, its transpose; or rows alone.
struct Turned {
  at::Tensor rows, columns = {};
  Turned narrow(int64_t begin, int64_t count) const {
    return {rows.narrow(1, begin, count),
            columns.defined() ? columns.narrow(0, begin, count) : columns};
  }
};

// Linears of one x, whose outputs lie side by side; or an x that is outputs already, or nothing.
class Linears {
 public:
  explicit Linears(Inputs& inputs, const Affine& of) : x_(inputs.put(of.x)) { add(inputs, of); }
  void add(Inputs& inputs, const Affine& of) {
    columns_.push_back(of.x.defined() ? of.columns() : 0);
    if (!of.weight.defined()) return;
    weights_.push_back(inputs.put(of.weight));
    biases_.push_back(inputs.put(of.bias));
  }

  at::Tensor x(at::TensorList inputs) const { return at_place(inputs, x_); }
  // In the type of the products; undefined where there are none.
  at::Tensor weight(at::TensorList inputs, bool in_bfloat16) const {
    return together(inputs, weights_, in_bfloat16);
  }
  at::Tensor bias(at::TensorList inputs, bool in_bfloat16) const {
    return together(inputs, biases_, in_bfloat16);
  }

  // The gradients of the inputs but for the biases, from that of the outputs.
  void backward(const AutogradContext& context, const Turned& dy, const at::Tensor& x,
                const at::Tensor& weight, variable_list& to) const {
    const auto wanted = [&](size_t place) {
      return place != kNone && context.needs_input_grad(place);
    };
    if (wanted(x_)) to[x_] = weight.defined() ? times(dy.rows, weight) : dy.rows;
    if (std::none_of(weights_.begin(), weights_.end(), wanted)) return;
    scatter(weight_gradient(dy.rows, dy.columns, x), weights_, to);
  }
  void give_biases(const at::Tensor& sums, variable_list& to) const { scatter(sums, biases_, to); }

  // Each Linear's columns of the outputs.
  std::vector<Turned> parts(const Turned& y) const {
    std::vector<Turned> result;
    int64_t begin = 0;
    for (const int64_t count : columns_) {
      result.push_back(y.narrow(begin, count));
      begin += count;
    }
    return result;
  }

 private:
  static at::Tensor together(at::TensorList inputs, const std::vector<size_t>& places,
                             bool in_bfloat16) {
    if (places.empty()) return {};
    std::vector<at::Tensor> tensors;
    for (const size_t place : places) tensors.push_back(inputs[place]);
    if (in_bfloat16) return rounded(tensors);
    return tensors.size() == 1 ? tensors[0] : at::cat(tensors);
  }
  void scatter(const at::Tensor& gradient, const std::vector<size_t>& places,
               variable_list& to) const {
    int64_t begin = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      to[places[i]] = gradient.narrow(0, begin, columns_[i]);
      begin += columns_[i];
    }
  }

  size_t x_;
  std::vector<size_t> weights_, biases_;  // places
  std::vector<int64_t> columns_;          // of each Linear
};

template <typename Work>
const Work& work_of(AutogradContext& context) {
  return *static_cast<const Work*>(context.saved_data["work"].toCapsule().get());
}

// ---- heads ----

struct HeadsWork : torch::CustomClassHolder {
  HeadsPlan plan;
  std::vector<Linears> linears;  // of queries, keys and values, in this order
  size_t inputs = 0;

  // From the products' outputs, or from what is as they are.
  std::array<Turned, 3> qkv(const std::vector<Turned>& outputs) const {
    std::vector<Turned> all;
    for (size_t i = 0; i < linears.size(); ++i)
      for (Turned& part : linears[i].parts(outputs[i])) all.push_back(std::move(part));
    return {all[0], all[1], all[2]};
  }
  Heads heads(const std::vector<Turned>& outputs) const {
    const auto [q, k, v] = qkv(outputs);
    return {.queries = q.rows,
            .keys = k.rows,
            .values = v.rows,
            .layout = plan.layout.get(),
            .heads = plan.heads,
            .dropout = plan.dropout,
            .first_head = plan.first_head};
  }
};

class HeadsNode : public torch::autograd::Function<HeadsNode> {
 public:
  static at::Tensor forward(AutogradContext* context, at::TensorList inputs,
                            const c10::intrusive_ptr<HeadsWork>& work) {
    const auto guard = without_autocast();
    const bool in_bfloat16 = work->plan.in_bfloat16;
    std::vector<Turned> outputs;
    variable_list kept;
    for (const Linears& linears : work->linears) {
      const at::Tensor x = linears.x(inputs), weight = linears.weight(inputs, in_bfloat16);
      at::Tensor y = x.contiguous();
      if (weight.defined()) {
        y = empty_rows(x.size(0), weight.size(0), weight.scalar_type());
        affine_into(y, x, weight, linears.bias(inputs, in_bfloat16));
      }
      outputs.push_back({y});
      kept.insert(kept.end(), {weight.defined() ? x : at::Tensor(), weight, y});
    }
    const Heads heads = work->heads(outputs);
    const at::Tensor& q = heads.queries;
    const at::Tensor mixed = empty_rows(q.size(0), q.size(1), q.scalar_type());
    const at::Tensor statistics = at::empty({2, heads.heads, q.size(0)}, at::kFloat);
    heads_forward(heads, mixed, statistics);
    kept.push_back(statistics);
    context->save_for_backward(std::move(kept));
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    return mixed;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_gradient("BertClassifier");
    const auto guard = without_autocast();
    const auto& work = work_of<HeadsWork>(*context);
    const variable_list kept = context->get_saved_variables();
    std::vector<Turned> outputs, turned;
    for (size_t i = 0; i < work.linears.size(); ++i) {
      const at::Tensor& y = kept[3 * i + 2];
      outputs.push_back({y});
      turned.push_back(
          {empty_rows(y.size(0), y.size(1), y.scalar_type()),
           work.plan.in_bfloat16 ? empty_columns(y.size(0), y.size(1)) : at::Tensor()});
    }
    const auto [q, k, v] = work.qkv(turned);
    heads_backward(work.heads(outputs), kept.back(), gradients[0].contiguous(),
                   {q.rows, k.rows, v.rows, q.columns, k.columns, v.columns});
    variable_list result(work.inputs + 1);
    for (size_t i = 0; i < work.linears.size(); ++i) {
      const at::Tensor &x = kept[3 * i], &weight = kept[3 * i + 1];
      work.linears[i].backward(*context, turned[i], x, weight, result);
      if (weight.defined()) work.linears[i].give_biases(column_sums(turned[i].rows), result);
    }
    return result;
  }
};

// ---- activation ----

struct ActivationWork : torch::CustomClassHolder {
  ActivationWork(Inputs& inputs, const Affine& x) : linears(inputs, x) {}
  Linears linears;
  kernels::Activation activation = kernels::Activation::kGelu;
  bool in_bfloat16 = false;
  bool differentiable = false;
  size_t inputs = 0;
};

class ActivationNode : public torch::autograd::Function<ActivationNode> {
 public:
  static at::Tensor forward(AutogradContext* context, at::TensorList inputs,
                            const c10::intrusive_ptr<ActivationWork>& work) {
    const auto guard = without_autocast();
    const at::Tensor x = work->linears.x(inputs),
                     weight = work->linears.weight(inputs, work->in_bfloat16);
    // The slope takes the product's place; that of others' rows would not be ours.
    const at::Tensor y =
        weight.defined() ? times_transposed(x, weight) : x.clone(at::MemoryFormat::Contiguous);
    at::Tensor bias = work->linears.bias(inputs, /*in_bfloat16=*/false);
    if (!bias.defined()) bias = at::zeros({y.size(1)}, at::kFloat);
    const at::Tensor active = activate_rows(y, bias, work->activation, work->differentiable);
    context->save_for_backward({weight.defined() ? x : at::Tensor(), weight, y});
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    return active;
  }

  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    refuse_second_gradient("BertClassifier");
    const auto guard = without_autocast();
    const auto& work = work_of<ActivationWork>(*context);
    const variable_list kept = context->get_saved_variables();
    at::Tensor dy = std::move(gradients[0]);
    if (!is_sole(dy)) dy = dy.clone(at::MemoryFormat::Contiguous);
    const ActivateBackward active = activate_rows_backward(kept[2], dy);
    variable_list result(work.inputs + 1);
    work.linears.backward(*context, {dy, active.dx_columns}, kept[0], kept[1], result);
    work.linears.give_biases(active.dbias, result);
    return result;
  }
};

// ---- norm ----

struct NormWork : torch::CustomClassHolder {
  NormWork(Inputs& inputs, const Affine& x) : linears(inputs, x) {}
  NormPlan plan;
  Linears linears;
  size_t residual = kNone, gamma = kNone, beta = kNone, inputs = 0;
};

class NormNode : public torch::autograd::Function<NormNode> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const c10::intrusive_ptr<NormWork>& work) {
    const auto guard = without_autocast();
    const bool in_bfloat16 = work->plan.in_bfloat16;
    const at::Tensor x = work->linears.x(inputs),
                     weight = work->linears.weight(inputs, in_bfloat16),
                     residual = inputs[work->residual];
    at::Tensor y;
    if (x.defined()) y = weight.defined() ? times_transposed(x, weight) : x.contiguous();
    if (y.defined() && y.sizes() != residual.sizes())
      throw InvalidArgument("BertClassifier: a Linear gave [" + joined(y.sizes()) + "] where [" +
                            joined(residual.sizes()) + "] is added to it");
    const variable_list kept{weight.defined() ? x : at::Tensor(),
                             weight,
                             y,
                             work->linears.bias(inputs, /*in_bfloat16=*/false),
                             residual,
                             inputs[work->gamma],
                             inputs[work->beta]};
    const Normed normed = norm_rows(norm_of(kept, work->plan), residual.size(0), in_bfloat16);
    variable_list all = kept;
    all.push_back(normed.statistics);
    context->save_for_backward(std::move(all));
    context->saved_data["work"] = c10::IValue::make_capsule(work);
    context->set_materialize_grads(false);
    return {normed.y, in_bfloat16 ? normed.rounded : normed.y.detach()};
  }

  static variable_list backward(AutogradContext* context, variable_list& dy) {
    refuse_second_gradient("BertClassifier");
    const auto guard = without_autocast();
    const auto& work = work_of<NormWork>(*context);
    const variable_list kept = context->get_saved_variables();
    const bool has_x = kept[2].defined();
    const NormBackward norm = norm_rows_backward(norm_of(kept, work.plan), kept.back(),
                                                 std::move(dy[0]), std::move(dy[1]), has_x);
    variable_list result(work.inputs + 1);
    if (has_x)
      work.linears.backward(*context, {norm.dx, norm.dx_columns}, kept[0], kept[1], result);
    if (kept[3].defined()) work.linears.give_biases(norm.dbias, result);
    result[work.residual] = norm.dz;
    result[work.gamma] = norm.dgamma;
    result[work.beta] = norm.dbeta;
    return result;
  }

 private:
  // Of what forward keeps.
  static kernels::Norm norm_of(const variable_list& kept, const NormPlan& plan) {
    const auto floats = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
    };
    kernels::Norm n;
    n.width = kept[4].size(1);
    n.type = plan.in_bfloat16 ? kernels::Type::kBFloat16 : kernels::Type::kFloat32;
    n.x = kept[2].defined() ? kept[2].const_data_ptr() : nullptr;
    n.bias = floats(kept[3]);
    n.residual = floats(kept[4]);
    n.before = plan.before;
    n.gamma = floats(kept[5]);
    n.beta = floats(kept[6]);
    n.epsilon = static_cast<float>(plan.epsilon);
    n.after = plan.after;
    return n;
  }
};

}  // namespace

at::Tensor attention_node(const std::array<Affine, 3>& qkv, const HeadsPlan& plan) {
  Inputs inputs;
  auto work = c10::make_intrusive<HeadsWork>();
  work->plan = plan;
  for (size_t i = 0; i < qkv.size(); ++i) {
    const bool joins = i > 0 && qkv[i].weight.defined() && qkv[i - 1].weight.defined() &&
                       qkv[i].x.is_same(qkv[i - 1].x);
    if (joins)
      work->linears.back().add(inputs, qkv[i]);
    else
      work->linears.emplace_back(inputs, qkv[i]);
  }
  work->inputs = inputs.list().size();
  return HeadsNode::apply(inputs.list(), work);
}

at::Tensor activation_node(const Affine& x, kernels::Activation activation, bool in_bfloat16) {
  Inputs inputs;
  auto work = c10::make_intrusive<ActivationWork>(inputs, x);
  work->activation = activation;
  work->in_bfloat16 = in_bfloat16;
  work->differentiable = inputs.differentiable();
  work->inputs = inputs.list().size();
  return ActivationNode::apply(inputs.list(), work);
}

LayerRows norm_node(const Affine& x, const at::Tensor& residual, const at::Tensor& gamma,
                    const at::Tensor& beta, const NormPlan& plan) {
  Inputs inputs;
  auto work = c10::make_intrusive<NormWork>(inputs, x);
  work->plan = plan;
  work->residual = inputs.put(residual);
  work->gamma = inputs.put(gamma);
  work->beta = inputs.put(beta);
  work->inputs = inputs.list().size();
  const variable_list rows = NormNode::apply(inputs.list(), work);
  return {rows[0], rows[1]};
}

}  // namespace lockstep::inline v0::internal
