#include "lockstep/c/internal/loss.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include "lockstep/c/internal/arrays.h"
#include "lockstep/c/internal/guard.h"
#include "lockstep/c/internal/script_model.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::c_api {
namespace {

using Tensors = std::vector<at::Tensor>;

LossValue of_scalar(const at::Tensor& loss) {
  if (loss.numel() != 1) {
    std::ostringstream shape;
    shape << loss.sizes();
    throw InvalidArgument("the loss has the shape " + shape.str() +
                          "; it must be one number, a mean over the rows");
  }
  LossValue result{.value = loss.item<double>(), .roots = {}, .gradients = {}};
  if (loss.requires_grad()) {
    result.roots.push_back(loss);
    result.gradients.push_back(at::ones_like(loss));
  }
  return result;
}

Loss built_in(at::Tensor (*loss)(const at::Tensor& output, const at::Tensor& target)) {
  return [loss](const Tensors& outputs, const Tensors& targets) {
    if (outputs.empty() || targets.empty())
      throw InvalidArgument("the loss needs an output and a target");
    return of_scalar(loss(outputs[0], targets[0].to(outputs[0].device())));
  };
}

// mse_loss and l1_loss would stretch a target of another shape, with a warning.
const at::Tensor& of_shape(const at::Tensor& target, const at::Tensor& output) {
  if (target.sizes() == output.sizes()) return target;
  std::ostringstream text;
  text << "the target has the shape " << target.sizes() << ", and the output " << output.sizes();
  throw InvalidArgument(text.str());
}

Loss of_script(const std::string& path, at::Device device) {
  const auto script = std::make_shared<ScriptModel>(read_script(path, device), device);
  return [script](const Tensors& outputs, const Tensors& targets) {
    Tensors both = outputs;
    both.insert(both.end(), targets.begin(), targets.end());
    const Tensors result = script->forward(both);
    if (result.size() != 1)
      throw InvalidArgument("the loss script returns " + std::to_string(result.size()) +
                            " tensors; it must return one");
    return of_scalar(result[0]);
  };
}

Tensors on_host(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().cpu().contiguous());
  return result;
}

std::vector<lockstep_array> arrays_of(const Tensors& tensors) {
  std::vector<lockstep_array> arrays;
  for (const at::Tensor& tensor : tensors) {
    arrays.push_back(array_of(tensor));
    arrays.back().strides = nullptr;
  }
  return arrays;
}

Loss of_function(lockstep_loss_function function, void* context) {
  return [function, context](const Tensors& outputs, const Tensors& targets) {
    const Tensors shown = on_host(outputs), wanted = on_host(targets);
    Tensors gradients;
    for (const at::Tensor& output : shown) gradients.push_back(at::zeros_like(output));
    const std::vector<lockstep_array> in = arrays_of(shown), goal = arrays_of(wanted);
    std::vector<lockstep_array> out = arrays_of(gradients);
    LossValue result;
    const int status = function(context, in.data(), static_cast<int32_t>(in.size()), goal.data(),
                                static_cast<int32_t>(goal.size()), out.data(), &result.value);
    if (status != 0) throw CallbackError("loss_function returned " + std::to_string(status));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad()) continue;
      result.roots.push_back(outputs[i]);
      result.gradients.push_back(gradients[i].to(outputs[i].device()));
    }
    return result;
  };
}

const std::map<std::string, Loss>& built_in_losses() {
  static const std::map<std::string, Loss> kLosses{
      {"mse", built_in([](const at::Tensor& output, const at::Tensor& target) {
         return at::mse_loss(output, of_shape(target, output));
       })},
      {"l1", built_in([](const at::Tensor& output, const at::Tensor& target) {
         return at::l1_loss(output, of_shape(target, output));
       })},
      {"cross_entropy", built_in([](const at::Tensor& output, const at::Tensor& target) {
         return at::cross_entropy_loss(output, target);
       })},
      {"nll", built_in([](const at::Tensor& output, const at::Tensor& target) {
         return at::nll_loss(output, target);
       })}};
  return kLosses;
}

}  // namespace

bool is_built_in_loss(const std::string& name) {
  return built_in_losses().contains(name);
}

Loss make_loss(const std::string& name, lockstep_loss_function function, void* context,
               at::Device device) {
  if (name.empty() == (function == nullptr))
    throw InvalidArgument("give either loss or loss_function");
  if (function != nullptr) return of_function(function, context);
  const std::map<std::string, Loss>& losses = built_in_losses();
  if (const auto found = losses.find(name); found != losses.end()) return found->second;
  if (!std::filesystem::exists(name)) {
    throw InvalidArgument("there is no loss '" + name +
                          "'; give mse, l1, cross_entropy, nll or a TorchScript file");
  }
  return of_script(name, device);
}

}  // namespace lockstep::inline v0::c_api
