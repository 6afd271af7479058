// Tensors by name, in an order: a module's parameters, a checkpoint's contents.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

}  // namespace lockstep
