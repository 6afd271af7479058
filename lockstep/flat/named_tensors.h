// Tensors by name, in an order: a module's parameters, a checkpoint's contents.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// What a module's named_parameters() or named_buffers() returned, in its order; without undefined
// ones.
template <typename Dict>
NamedTensors to_named_tensors(const Dict& dict) {
  NamedTensors tensors;
  for (const auto& item : dict) {
    if (item.value().defined()) tensors.emplace_back(item.key(), item.value());
  }
  return tensors;
}

// A module (anything with named_parameters()), or a holder of or a pointer to one.
template <typename M>
concept ModuleOrHolder =
    requires(M& m) { m.named_parameters(); } || requires(M& m) { m->named_parameters(); };

template <ModuleOrHolder M>
NamedTensors parameters_of(M& module) {
  if constexpr (requires { module.named_parameters(); })
    return to_named_tensors(module.named_parameters());
  else
    return to_named_tensors(module->named_parameters());
}

}  // namespace lockstep
