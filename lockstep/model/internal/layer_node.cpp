#include "lockstep/model/internal/layer_node.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/model/internal/arithmetic.h"
#include "lockstep/model/internal/layer_passes.h"

namespace lockstep::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

variable_list list_of(const LayerParameters& p) {
  return {p.query_weight, p.query_bias, p.key_weight, p.key_bias, p.value_weight, p.value_bias,
          p.mix_weight,   p.mix_bias,   p.mix_gamma,  p.mix_beta, p.inner_weight, p.inner_bias,
          p.outer_weight, p.outer_bias, p.gamma,      p.beta};
}

struct PlanHolder : torch::CustomClassHolder {
  explicit PlanHolder(std::shared_ptr<const LayerPlan> the_plan) : plan(std::move(the_plan)) {}
  std::shared_ptr<const LayerPlan> plan;
};

class LayerNode : public torch::autograd::Function<LayerNode> {
 public:
  // inputs: x; in bfloat16 x rounded; the parameters.
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const std::shared_ptr<const LayerPlan>& plan,
                               const LayerParameters& parameters, bool differentiable) {
    const auto guard = without_autocast();
    LayerSaved saved;
    const LayerRows result = LayerPasses(*plan, saved)
                                 .forward({inputs[0], plan->in_bfloat16 ? inputs[1] : at::Tensor()},
                                          parameters, differentiable);
    variable_list kept;
    for (const at::Tensor* tensor : saved.all()) kept.push_back(*tensor);
    context->save_for_backward(std::move(kept));
    context->saved_data["plan"] = c10::IValue::make_capsule(c10::make_intrusive<PlanHolder>(plan));
    context->set_materialize_grads(false);
    if (plan->in_bfloat16) return {result.exact, result.rounded};
    return {result.exact};
  }

  static variable_list backward(AutogradContext* context, variable_list dy) {
    refuse_second_gradient("BertClassifier");
    const auto guard = without_autocast();
    const auto holder =
        c10::static_intrusive_pointer_cast<PlanHolder>(context->saved_data["plan"].toCapsule());
    const LayerPlan& plan = *holder->plan;
    for (at::Tensor& gradient : dy)
      if (gradient.defined()) gradient = gradient.contiguous();
    LayerSaved saved;
    variable_list kept = context->get_saved_variables();
    const auto places = saved.all();
    for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(kept[i]);
    const size_t first = plan.in_bfloat16 ? 2 : 1;
    // By the parameters' places in list_of().
    const auto needs = [&](size_t i) { return context->needs_input_grad(first + i); };
    const LayerGradients gradients = LayerPasses(plan, saved)
                                         .backward({dy[0], plan.in_bfloat16 ? dy[1] : at::Tensor()},
                                                   {.qkv = needs(0) || needs(2) || needs(4),
                                                    .mix = needs(6),
                                                    .inner = needs(10),
                                                    .outer = needs(12)});
    variable_list result;
    result.push_back(gradients.x.exact);
    if (plan.in_bfloat16) result.push_back(gradients.x.rounded);
    for (at::Tensor& gradient : list_of(gradients.parameters))
      result.push_back(std::move(gradient));
    result.resize(result.size() + 3);  // the arguments that are no tensors
    return result;
  }
};

}  // namespace

LayerRows layer(const LayerRows& x, const LayerParameters& parameters,
                const std::shared_ptr<const LayerPlan>& plan) {
  variable_list inputs;
  inputs.push_back(x.exact);
  if (plan->in_bfloat16) inputs.push_back(x.rounded);
  for (const at::Tensor& parameter : list_of(parameters)) inputs.push_back(parameter);
  const bool differentiable =
      at::GradMode::is_enabled() &&
      std::any_of(inputs.begin(), inputs.end(), [](const auto& t) { return t.requires_grad(); });
  const variable_list result =
      LayerNode::apply(at::TensorList(inputs), plan, parameters, differentiable);
  return {result[0], plan->in_bfloat16 ? result[1] : at::Tensor()};
}

}  // namespace lockstep::internal
