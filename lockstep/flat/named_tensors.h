// Tensors by name, in order: a module's parameters, a checkpoint's contents.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
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
  for (const auto& item : dict) {
    if (item.value().defined()) tensors.emplace_back(item.key(), item.value());
  }
  return tensors;
}

// For a module (anything with named_parameters()), its holder or a pointer to it.
template <typename M>
concept ModuleOrHolder =
    requires(M& m) { m.named_parameters(); } || requires(M& m) { m->named_parameters(); };

// The parameters of a module or a holder, by name.
template <ModuleOrHolder M>
NamedTensors parameters_of(M& module) {
  if constexpr (requires { module.named_parameters(); })
    return to_named_tensors(module.named_parameters());
  else
    return to_named_tensors(module->named_parameters());
}

}  // namespace lockstep::inline v0
