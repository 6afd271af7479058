// What is known of libtorch's layers: which operation each calls, and which of its tensors carry
// the mark.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/hooks/internal/marks.h"

namespace torch::nn {
class Module;
}

namespace lockstep::hooks::internal {

// The members of a layer, which are the registered tensors themselves.
struct LayerTensors {
  Kind kind = Kind::kLinear;
  struct Marked {
    at::Tensor* tensor = nullptr;
    Role role = Role::kWeight;
  };
  std::vector<Marked> marked;
  bool has_bias = false;
  // Nothing of its own can be marked: this member, which the operation then gets and ignores.
  at::Tensor* carrier = nullptr;
  std::string refusal;  // why it takes no hooks, though its kind does
};

// Nothing for another kind of module.
std::optional<LayerTensors> tensors_of(torch::nn::Module& module);

// The kernels that call hooks, once a process.
void register_layer_kernels();

}  // namespace lockstep::hooks::internal
