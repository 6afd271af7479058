#include "lockstep/parallel/zero/internal/unit_plan.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/core/errors.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/hooks/layer_hook.h"

namespace lockstep::inline v0::internal {
namespace {

constexpr size_t kOutside = static_cast<size_t>(-1);

// The unit that a module is, or belongs to.
size_t unit_of(const std::string& module, const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (module == names[i] || module.starts_with(names[i] + ".")) return i;
  }
  return kOutside;
}

void check_apart(const std::vector<std::string>& names) {
  for (const std::string& above : names) {
    for (const std::string& below : names) {
      if (below.starts_with(above + "."))
        throw InvalidArgument("ZeroUnits: '" + below + "' is below '" + above +
                              "'; name one of them");
    }
  }
}

}  // namespace

UnitPlan plan_units(const torch::nn::Module& model, const std::vector<std::string>& names,
                    std::span<const at::Tensor> parameters) {
  const std::vector<std::string> units =
      names.empty() ? layers_of(model) : modules_named(model, names);
  if (units.empty())
    throw InvalidArgument("ZeroUnits: " + model.name() +
                          " has no list of layers that are Hookable; give their names");
  check_apart(units);
  for (const std::string& unit : units) {
    // It reads its parameters before a hook could fetch them.
    if (hooks::cannot_hook(*find_module(model, unit)).empty())
      throw InvalidArgument("ZeroUnits: '" + unit +
                            "' is one layer of libtorch; name a module that is made of several");
  }
  // For each tensor: the units, or the outside, whose modules have it.
  std::map<const c10::TensorImpl*, std::set<size_t>> holders;
  const auto note = [&](const torch::nn::Module& module, size_t unit) {
    for (const at::Tensor& tensor : module.parameters(/*recurse=*/false))
      holders[tensor.unsafeGetTensorImpl()].insert(unit);
  };
  note(model, kOutside);
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    note(*item.value(), unit_of(item.key(), units));
  UnitPlan plan;
  std::vector<std::optional<size_t>> place(units.size());  // index in plan.names
  std::vector<std::optional<size_t>> given;
  for (const at::Tensor& parameter : parameters) {
    const auto found = holders.find(parameter.unsafeGetTensorImpl());
    const bool alone =
        found != holders.end() && found->second.size() == 1 && !found->second.contains(kOutside);
    given.push_back(alone ? std::optional(*found->second.begin()) : std::nullopt);
  }
  for (size_t i = 0; i < units.size(); ++i) {
    if (std::find(given.begin(), given.end(), std::optional(i)) == given.end()) continue;
    place[i] = plan.names.size();
    plan.names.push_back(units[i]);
  }
  for (const auto& unit : given) plan.unit.push_back(unit ? place[*unit] : std::nullopt);
  return plan;
}

}  // namespace lockstep::inline v0::internal
