#include "lockstep/optim/decay_groups.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <unordered_set>

namespace lockstep::inline v0::optim {
namespace {

// True for "torch::nn::BatchNorm2dImpl", a normalisation layer; false for "NormalizingFlowImpl".
bool names_a_norm(std::string_view type) {
  if (const size_t colons = type.rfind("::"); colons != std::string_view::npos)
    type.remove_prefix(colons + 2);
  if (type.ends_with("Impl")) type.remove_suffix(4);
  if (type.size() > 2 && type.back() == 'd' &&
      std::isdigit(static_cast<unsigned char>(type[type.size() - 2])))
    type.remove_suffix(2);
  return type.ends_with("Norm");
}

std::string_view last_part(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

bool is_spared(const std::string& name, const at::Tensor& tensor, const std::string& type,
               const NoDecay& rule) {
  if (rule.biases && last_part(name).find("bias") != std::string_view::npos) return true;
  if (rule.norms && names_a_norm(type)) return true;
  if (rule.one_dimensional && tensor.dim() <= 1) return true;
  return std::any_of(rule.names.begin(), rule.names.end(),
                     [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

void split(const torch::nn::Module& module, const std::string& prefix, const NoDecay& rule,
           std::unordered_set<const void*>* seen, DecayGroups* out) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& tensor = item.value();
    if (!tensor.requires_grad() || !seen->insert(tensor.unsafeGetTensorImpl()).second) continue;
    std::string name = prefix + item.key();
    NamedTensors& group = is_spared(name, tensor, module.name(), rule) ? out->no_decay : out->decay;
    group.emplace_back(std::move(name), tensor);
  }
  for (const auto& child : module.named_children())
    split(*child.value(), prefix + child.key() + ".", rule, seen, out);
}

}  // namespace

DecayGroups split_by_decay(const torch::nn::Module& module, const NoDecay& rule) {
  DecayGroups result;
  std::unordered_set<const void*> seen;
  split(module, "", rule, &seen, &result);
  return result;
}

}  // namespace lockstep::inline v0::optim
