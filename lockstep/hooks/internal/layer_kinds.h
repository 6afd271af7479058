// The properties of libtorch's layers: the operation that each calls, and which of its tensors
// carry the mark.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/hooks/internal/marks.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0::hooks::internal {

// The members of a layer that are the registered tensors themselves.
struct LayerTensors {
  Kind kind = Kind::kLinear;
  struct Marked {
    at::Tensor* tensor = nullptr;
    Role role = Role::kWeight;
  };
  std::vector<Marked> marked;
  bool has_bias = false;
  // No tensor of its own can be marked: the mark is on this member, which the operation then gets
  // and ignores.
  at::Tensor* carrier = nullptr;
  std::string refusal;  // why it supports no hooks, though its kind does
};

// nullopt for another kind of module.
std::optional<LayerTensors> tensors_of(torch::nn::Module& module);

// Registers the kernels that call hooks, once per process.
void register_layer_kernels();

}  // namespace lockstep::inline v0::hooks::internal
