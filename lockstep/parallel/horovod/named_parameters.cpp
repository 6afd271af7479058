#include <string>
#include <unordered_map>

#include "lockstep/parallel/horovod/distributed_optimizer.h"

namespace lockstep::inline v0 {

NamedTensors NamedParameters::of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) const {
  std::unordered_map<const void*, const std::string*> names;
  for (const auto& [name, tensor] : list_) names.emplace(tensor.unsafeGetTensorImpl(), &name);
  NamedTensors result;
  for (const auto& group : groups) {
    for (const at::Tensor& tensor : group.params()) {
      const std::string place = "parameter " + std::to_string(result.size());
      const auto found = names.find(tensor.unsafeGetTensorImpl());
      if (found == names.end() && !list_.empty()) {
        throw InvalidArgument(place +
                              " of the optimizer has no name: give named_parameters() of the "
                              "whole model, or no names at all");
      }
      result.emplace_back(found == names.end() ? place : *found->second, tensor);
    }
  }
  return result;
}

}  // namespace lockstep::inline v0
