#include "lockstep/flat/wrapped_parameters.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::flat {

struct WrappedParameters::Seen {
  std::string name;
  at::Tensor tensor;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  at::Device device;
  bool trained;
  // Has the hooks on the gradient; autograd makes another one when dtype or device change.
  decltype(torch::autograd::impl::grad_accumulator(at::Tensor())) accumulator;
};

namespace {

// A module's own parameters, without the copies of names and tensors that named_parameters() makes.
struct OwnParameters : torch::nn::Module {
  static const auto& of(const torch::nn::Module& module) {
    return module.*(&OwnParameters::parameters_);
  }
};

std::string kind_text(at::ScalarType dtype, at::IntArrayRef sizes, const at::Device& device) {
  return std::string(c10::toString(dtype)) + " [" + joined(sizes) + "] on " + device.str();
}

[[noreturn]] void refuse(const std::string& who, const std::string& name,
                         const std::string& change) {
  throw InvalidArgument(who + ": parameter '" + name + "' " + change +
                        "; change the model before it is wrapped, or wrap it again");
}

// Whether the module's tensors, in its order, are the first ones of `expected`; advances it
// past them.
template <typename Iterator>
bool take_same(const torch::nn::Module& module, Iterator& expected, const Iterator& end) {
  for (const auto& item : OwnParameters::of(module)) {
    if (!item.value().defined()) continue;
    if (expected == end || !item.value().is_same(expected->tensor)) return false;
    ++expected;
  }
  for (const auto& child : module.children()) {
    if (!take_same(*child, expected, end)) return false;
  }
  return true;
}

const char* without_parameters(ModelKind kind) {
  switch (kind) {
    case ModelKind::kModule:
      return "register_module() and register_parameter() make them known";
    case ModelKind::kScript:
      return "torch.jit.freeze() and torch.jit.optimize_for_inference() turn them into constants: "
             "export the model without these, in training mode";
    case ModelKind::kList:
      break;
  }
  return "the list of named tensors is empty";
}

const char* without_gradients(ModelKind kind) {
  switch (kind) {
    case ModelKind::kModule:
      return " (modules that were not given to register_module() do not count)";
    case ModelKind::kScript:
      return " (a TorchScript file keeps requires_grad as it was when the model was exported)";
    case ModelKind::kList:
      break;
  }
  return "";
}

}  // namespace

NamedTensors trained_once(NamedTensors parameters) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::erase_if(parameters, [&seen](const auto& entry) {
    return !entry.second.requires_grad() || !seen.insert(entry.second.unsafeGetTensorImpl()).second;
  });
  return parameters;
}

WrappedParameters::WrappedParameters(std::string who, const NamedTensors& parameters,
                                     ModelKind kind)
    : who_(std::move(who)), kind_(kind) {
  std::vector<Seen> seen;
  for (const auto& [name, tensor] : parameters) {
    Seen one{.name = name,
             .tensor = tensor,
             .sizes = tensor.sizes().vec(),
             .dtype = tensor.scalar_type(),
             .device = tensor.device(),
             .trained = tensor.requires_grad(),
             .accumulator = {}};
    if (one.trained && tensor.is_leaf())
      one.accumulator = torch::autograd::impl::grad_accumulator(tensor);
    seen.push_back(std::move(one));
  }
  seen_ = std::make_shared<const std::vector<Seen>>(std::move(seen));
}

void WrappedParameters::check_trained() const {
  if (std::any_of(seen_->begin(), seen_->end(), [](const Seen& seen) { return seen.trained; }))
    return;
  const std::string what =
      seen_->empty() ? std::string(": the model has no parameters; ") + without_parameters(kind_)
                     : ": none of the model's " + std::to_string(seen_->size()) +
                           " parameters requires a gradient; unfreeze some of them before, or "
                           "leave the model as it is" +
                           without_gradients(kind_);
  throw InvalidArgument(who_ + what);
}

bool WrappedParameters::is_at(size_t index, const at::Tensor& tensor) const {
  return index < seen_->size() && tensor.is_same((*seen_)[index].tensor);
}

size_t WrappedParameters::count() const {
  return seen_->size();
}

void WrappedParameters::check_module(const torch::nn::Module& module) const {
  auto expected = seen_->begin();
  if (take_same(module, expected, seen_->end()) && expected == seen_->end()) return;
  check_list(parameters_of(module));
}

void WrappedParameters::check_list(const NamedTensors& now) const {
  std::map<std::string, const Seen*> before;
  for (const Seen& seen : *seen_) before[seen.name] = &seen;
  for (const auto& [name, tensor] : now) {
    const auto found = before.find(name);
    if (found == before.end()) refuse(who_, name, "was added after the model was wrapped");
    if (!tensor.is_same(found->second->tensor))
      refuse(who_, name, "is another tensor than the one that was wrapped");
    before.erase(found);
  }
  for (const Seen& seen : *seen_) {
    if (before.contains(seen.name))
      refuse(who_, seen.name, "is no longer in the model that was wrapped");
  }
}

void WrappedParameters::check_kinds() const {
  for (const Seen& seen : *seen_) {
    const at::Tensor& tensor = seen.tensor;
    if (tensor.scalar_type() != seen.dtype || tensor.device() != seen.device ||
        tensor.sizes() != at::IntArrayRef(seen.sizes))
      refuse(who_, seen.name,
             "was " + kind_text(seen.dtype, seen.sizes, seen.device) +
                 " when it was wrapped and is " +
                 kind_text(tensor.scalar_type(), tensor.sizes(), tensor.device()) + " now");
    if (tensor.requires_grad() && !seen.trained)
      refuse(who_, seen.name, "required no gradient when it was wrapped and requires one now");
    if (seen.accumulator &&
        torch::autograd::impl::try_get_grad_accumulator(tensor) != seen.accumulator)
      refuse(who_, seen.name, "has been of another type or device since it was wrapped");
  }
}

}  // namespace lockstep::inline v0::flat
