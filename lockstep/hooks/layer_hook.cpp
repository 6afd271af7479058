#include "lockstep/hooks/layer_hook.h"

#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/hooks/internal/layer_kinds.h"
#include "lockstep/hooks/internal/marks.h"

namespace lockstep::inline v0::hooks {
namespace {

using internal::LayerTensors;
using internal::Mark;
using internal::Role;

// From any of the layer's tensors: one may have been replaced.
const Mark::Entry* entry_of(const LayerTensors& tensors) {
  for (const auto& [tensor, role] : tensors.marked)
    if (const Mark::Entry* entry = internal::entry_of(*tensor, tensors.kind)) return entry;
  return tensors.carrier == nullptr ? nullptr : internal::entry_of(*tensors.carrier, tensors.kind);
}

void set_hooks(const LayerTensors& tensors, LayerHooks hooks) {
  const bool none = hooks.empty();
  const auto shared = std::make_shared<const LayerHooks>(std::move(hooks));
  for (const auto& [tensor, role] : tensors.marked) {
    internal::set_entry(
        *tensor,
        {.kind = tensors.kind, .role = role, .has_bias = tensors.has_bias, .hooks = shared});
  }
  if (tensors.carrier == nullptr) return;
  // A tensor that is not a buffer, in an unused member.
  at::Tensor carrier = none ? at::Tensor() : at::zeros({1});
  if (!none) {
    internal::set_entry(
        carrier,
        {.kind = tensors.kind, .role = Role::kCarrier, .has_bias = false, .hooks = shared});
  }
  *tensors.carrier = carrier;
}

}  // namespace

at::Tensor LayerCall::compute(const at::Tensor& input) {
  if (left_ == 0) return compute_(input);
  LayerCall inner = *this;
  inner.left_ = left_ - 1;
  inner.input_ = input;
  return hooks_[inner.left_]->forward(inner);
}

at::Tensor LayerCall::leave_out_bias() {
  at::Tensor bias;
  for (c10::IValue& argument : arguments_) {
    if (!argument.isTensor()) continue;
    const Mark::Entry* const entry =
        internal::entry_of(argument.toTensor(), internal::Kind::kLinear);
    if (entry == nullptr || entry->role != Role::kBias) continue;
    bias = argument.toTensor();
    argument = c10::IValue();
  }
  return bias;
}

std::string cannot_hook(const torch::nn::Module& layer) {
  // It is only read.
  const auto tensors = internal::tensors_of(const_cast<torch::nn::Module&>(layer));
  if (!tensors) return "is none of libtorch's layers that take hooks";
  return tensors->refusal;
}

void add_hook(torch::nn::Module& layer, std::shared_ptr<LayerHook> hook, Place place) {
  if (const std::string reason = cannot_hook(layer); !reason.empty())
    throw InvalidArgument("a hook for " + layer.name() + ", which " + reason);
  internal::register_mark_kernels();
  internal::register_layer_kernels();
  const auto tensors = internal::tensors_of(layer);
  LayerHooks hooks = hooks_of(layer);
  // A call that reaches a replaced layer comes from inside the replacement.
  const auto outermost = std::find_if(hooks.begin(), hooks.end(), [](const auto& other) {
    return other->replacement() != nullptr;
  });
  hooks.insert(place == Place::kInnermost ? hooks.begin() : outermost, std::move(hook));
  set_hooks(*tensors, std::move(hooks));
}

bool remove_hook(torch::nn::Module& layer, const LayerHook* hook) {
  const auto tensors = internal::tensors_of(layer);
  if (!tensors) return false;
  LayerHooks hooks = hooks_of(layer);
  const auto it = std::find_if(hooks.begin(), hooks.end(),
                               [hook](const auto& other) { return other.get() == hook; });
  if (it == hooks.end()) return false;
  hooks.erase(it);
  set_hooks(*tensors, std::move(hooks));
  return true;
}

LayerHooks hooks_of(const torch::nn::Module& layer) {
  const auto tensors = internal::tensors_of(const_cast<torch::nn::Module&>(layer));
  const Mark::Entry* const entry = tensors ? entry_of(*tensors) : nullptr;
  return entry == nullptr ? LayerHooks{} : *entry->hooks;
}

void share_hooks(const torch::nn::Module& from, torch::nn::Module& to) {
  LayerHooks hooks = hooks_of(from);
  if (hooks == hooks_of(to)) return;
  if (const auto tensors = internal::tensors_of(to); tensors && tensors->refusal.empty())
    set_hooks(*tensors, std::move(hooks));
}

bool is_hooked(const at::Tensor& tensor) {
  return internal::mark_of(tensor) != nullptr;
}

void set_data(const at::Tensor& tensor, const at::Tensor& data) {
  c10::intrusive_ptr<Mark> mark;
  if (const Mark* before = internal::mark_of(tensor)) mark = c10::make_intrusive<Mark>(*before);
  tensor.set_data(data);
  if (mark) internal::set_mark(tensor, std::move(mark));
}

}  // namespace lockstep::inline v0::hooks
