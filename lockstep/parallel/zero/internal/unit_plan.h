// Decides which parameters make a unit (zero_optimizer.h, ZeroUnits). Pure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0::internal {

struct UnitPlan {
  std::vector<std::string> names;           // in the model's order
  std::vector<std::optional<size_t>> unit;  // of each parameter; nullopt: it stays whole
};

// A parameter that a module outside its unit shares is in no unit; a unit without parameters is
// left out. `names` as in ZeroUnits. Throws InvalidArgument for names that match nothing, modules
// that contain each other, and a model without a unit.
UnitPlan plan_units(const torch::nn::Module& model, const std::vector<std::string>& names,
                    std::span<const at::Tensor> parameters);

}  // namespace lockstep::inline v0::internal
