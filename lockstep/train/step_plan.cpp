#include "lockstep/train/step_plan.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <exception>

#include "lockstep/device/generator_state.h"

namespace lockstep::inline v0::internal {
namespace {

at::Device device_of(torch::nn::Module& model) {
  const auto parameters = model.parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

}  // namespace

Trial::Trial(torch::nn::Module& model)
    : model_(model),
      training_(model.is_training()),
      buffers_(to_named_tensors(model.named_buffers())),
      device_(device_of(model)),
      device_state_(device_.is_cpu() ? at::Tensor() : device::generator_state(device_)),
      generator_(at::detail::createCPUGenerator()),
      here_([this]() -> const at::Generator& { return generator_; }) {
  for (const auto& [name, buffer] : buffers_) values_.emplace_back(name, buffer.clone());
  for (const auto& module : model_.modules(/*include_self=*/false))
    modes_.emplace_back(module, module->is_training());
  model_.train();
}

Trial::~Trial() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].second.copy_(values_[i].second);
  try {
    if (device_state_.defined()) device::set_generator_state(device_, device_state_);
  } catch (const std::exception&) {  // cannot fail: the state was this generator's before
  }
  model_.train(training_);
  // Each by its own flag: train() goes down to all that is below, and these come from the top down.
  for (const auto& [module, training] : modes_) module->train(training);
}

}  // namespace lockstep::inline v0::internal
