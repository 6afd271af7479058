#include "lockstep/activations/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "lockstep/activations/internal/offload.h"
#include "lockstep/activations/internal/random_state.h"
#include "lockstep/amp/autocast.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/backward_watch.h"

namespace lockstep::inline v0::activations::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The state under which forward ran.
struct Part final : torch::CustomClassHolder {
  Part(TensorFunction fn, const Tensors& inputs, bool to_host)
      : function(std::move(fn)),
        random(inputs),
        offloads(to_host),
        autocast{amp::current_autocast(at::kCPU), amp::current_autocast(at::kCUDA)} {
    for (const at::Tensor& input : inputs) defined.push_back(input.defined());
  }

  // Returns all inputs, given those that are defined.
  Tensors spread(at::TensorList given) const {
    Tensors all;
    size_t next = 0;
    for (const bool there : defined) all.push_back(there ? given[next++] : at::Tensor());
    return all;
  }

  Tensors run_again(const Tensors& inputs) const {
    Tensors outputs;
    const at::AutoGradMode with_graph(true);
    const amp::Autocast cpu(autocast[0]), cuda(autocast[1]);
    random.run([&] { outputs = function(inputs); });
    return outputs;
  }

  TensorFunction function;
  RandomState random;
  bool offloads;
  std::shared_ptr<Offloaded> offloaded;  // null: the inputs stay where they are
  std::array<amp::AutocastSettings, 2> autocast;
  std::vector<bool> defined;  // per input
};

std::vector<int64_t> versions_of(at::TensorList tensors) {
  std::vector<int64_t> versions;
  for (const at::Tensor& tensor : tensors)
    versions.push_back(tensor.is_inference() ? 0 : tensor._version());
  return versions;
}

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  // `anchor` requires a gradient, because the parameters that the part uses are not inputs.
  static variable_list forward(AutogradContext* context, const at::Tensor& /*anchor*/,
                               at::TensorList inputs, const c10::intrusive_ptr<Part>& part,
                               Tensors* all) {
    const std::vector<int64_t> before = versions_of(inputs);
    variable_list kept = inputs.vec();
    if (part->offloads && std::any_of(kept.begin(), kept.end(), may_be_offloaded)) {
      part->offloaded = Offloaded::of(kept);
      for (at::Tensor& tensor : kept)
        if (may_be_offloaded(tensor)) tensor = at::Tensor();
    }
    *all = part->function(part->spread(inputs));
    if (part->offloaded) part->offloaded->let_go();
    if (versions_of(inputs) != before) {
      throw InvalidArgument(
          "checkpoint: the function changes an input in place, and computed again it would change "
          "it twice; let it change a copy");
    }
    context->save_for_backward(std::move(kept));
    context->set_materialize_grads(false);
    context->saved_data["part"] = c10::IValue::make_capsule(part);
    variable_list outputs;
    for (const at::Tensor& tensor : *all) {
      if (!tensor.defined()) continue;
      // A parameter that is returned unchanged remains one.
      const bool own = tensor.requires_grad() &&
                       std::none_of(inputs.begin(), inputs.end(),
                                    [&](const at::Tensor& input) { return input.is_same(tensor); });
      outputs.push_back(own ? tensor.detach() : tensor);
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["part"].toCapsule();
    const auto& part = static_cast<const Part&>(*capsule);
    variable_list inputs;
    Tensors back;
    if (part.offloaded) back = part.offloaded->back();
    for (const at::Tensor& saved : context->get_saved_variables()) {
      if (saved.defined())
        inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
      else
        inputs.push_back(std::move(back.at(inputs.size())).set_requires_grad(true));
    }
    Tensors outputs;
    for (at::Tensor& tensor : part.run_again(part.spread(inputs))) {
      if (tensor.defined()) outputs.push_back(std::move(tensor));
    }
    if (outputs.size() != gradients.size()) {
      throw Error("checkpoint: computed again, the function gives " +
                  std::to_string(outputs.size()) + " tensors, and gave " +
                  std::to_string(gradients.size()) +
                  "; it must do the same each time that it is called with the same inputs");
    }
    variable_list roots, with;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      with.push_back(gradients[i]);
    }
    // A backward inside this one, in which parameters get their gradients, with their hooks.
    const flat::OuterBackward outer;
    if (!roots.empty()) torch::autograd::backward(roots, with);
    variable_list result{at::Tensor()};  // the anchor's gradient
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    result.resize(result.size() + 2);  // the slots of values that are not tensors
    return result;
  }
};

}  // namespace

Tensors run_again_in_backward(TensorFunction function, const Tensors& inputs,
                              const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  const auto part = c10::make_intrusive<Part>(std::move(function), inputs, options.offload);
  variable_list given;
  for (const at::Tensor& input : inputs) {
    if (input.defined()) given.push_back(input);
  }
  const at::Tensor anchor = at::empty({0}).set_requires_grad(true);
  Tensors all;
  const variable_list outputs = Recompute::apply(anchor, at::TensorList(given), part, &all);
  size_t next = 0;
  for (at::Tensor& tensor : all) {
    if (tensor.defined()) tensor = outputs[next++];
  }
  return all;
}

}  // namespace lockstep::inline v0::activations::internal
