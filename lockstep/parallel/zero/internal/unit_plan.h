// Which parameters make a unit (zero_optimizer.h, ZeroUnits): a pure decision.
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

namespace lockstep::internal {

struct UnitPlan {
  std::vector<std::string> names;           // in the model's order
  std::vector<std::optional<size_t>> unit;  // of each parameter; none: it stays whole
};

// A parameter that a module outside of its unit has as well is in no unit; a unit without parameters is
// left out. `names` as ZeroUnits says. Throws InvalidArgument: names that match nothing, or modules below
// each other; a model in which there is no unit.
UnitPlan plan_units(const torch::nn::Module& model, const std::vector<std::string>& names,
                    std::span<const at::Tensor> parameters);

}  // namespace lockstep::internal
