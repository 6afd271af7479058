// Tensors by name, in order: a model's parameters, a checkpoint's contents. And a model as such
// lists, which is all that code which averages, wraps, divides or saves needs to know of it.
//
// A model is one of
// - a module of libtorch, its holder (TORCH_MODULE) or a pointer to it,
// - a TorchScript module, torch::jit::Module, or a pointer to it,
// - a TensorModel (tensor_model.h), or any other class with named_parameters(),
// - a list of named tensors, which are then its parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::inline v0 {

// Tensors with their names, in order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The result of a module's named_parameters() or named_buffers(), in its order, without undefined
// tensors.
template <typename Dict>
NamedTensors to_named_tensors(const Dict& dict) {
  NamedTensors tensors;
  const auto add = [&tensors](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) tensors.emplace_back(name, tensor);
  };
  for (const auto& item : dict) {
    if constexpr (requires { item.key(); }) {
      add(item.key(), item.value());
    } else if constexpr (requires { item.name; }) {  // TorchScript's
      add(item.name, item.value);
    } else {
      add(item.first, item.second);
    }
  }
  return tensors;
}

// A module (anything with named_parameters()), its holder or a pointer to it.
template <typename M>
concept ModuleOrHolder =
    requires(M& m) { m.named_parameters(); } || requires(M& m) { m->named_parameters(); };

// The above, or a list of named tensors.
template <typename M>
concept AnyModel = ModuleOrHolder<M> || std::same_as<std::remove_cv_t<M>, NamedTensors>;

// The module itself, of a holder or a pointer.
template <ModuleOrHolder M>
auto& module_in(M& module) {
  if constexpr (requires { module.named_parameters(); })
    return module;
  else if constexpr (std::is_pointer_v<M>)
    return *module;
  else
    return *module.operator->();
}

// In the model's order. A tensor that the model has under several names occurs under each.
template <AnyModel M>
NamedTensors parameters_of(const M& model) {
  if constexpr (ModuleOrHolder<M>)
    return to_named_tensors(module_in(model).named_parameters());
  else
    return to_named_tensors(model);
}

// None for a list, and for a class without named_buffers(). A TorchScript module's are all its
// other tensors, including those that Python calls non-persistent.
template <AnyModel M>
NamedTensors buffers_of(const M& model) {
  if constexpr (ModuleOrHolder<M>) {
    if constexpr (requires { module_in(model).named_buffers(); })
      return to_named_tensors(module_in(model).named_buffers());
  }
  return {};
}

// Its parameters, then its buffers: what Python calls its state dict.
template <AnyModel M>
NamedTensors state_of(const M& model) {
  NamedTensors state = parameters_of(model);
  NamedTensors buffers = buffers_of(model);
  state.insert(state.end(), std::make_move_iterator(buffers.begin()),
               std::make_move_iterator(buffers.end()));
  return state;
}

// True for a list, and for a class without is_training().
template <AnyModel M>
bool is_training(const M& model) {
  if constexpr (ModuleOrHolder<M>) {
    if constexpr (requires { module_in(model).is_training(); })
      return module_in(model).is_training();
  }
  return true;
}

// The kinds of models, of which errors speak differently.
enum class ModelKind : uint8_t { kModule, kScript, kList };

template <AnyModel M>
constexpr ModelKind kind_of(const M& /*model*/) {
  if constexpr (ModuleOrHolder<M>) {
    using Module = std::remove_cvref_t<decltype(module_in(std::declval<M&>()))>;
    if constexpr (requires(const Module& m) { m.get_methods(); }) return ModelKind::kScript;
    if constexpr (requires(const Module& m) { m.children(); }) return ModelKind::kModule;
  }
  return ModelKind::kList;
}

}  // namespace lockstep::inline v0
