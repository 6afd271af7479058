#include "lockstep/flat/module_device.h"

namespace lockstep::inline v0 {

c10::Device device_of(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters())
    if (parameter.defined()) return parameter.device();
  for (const at::Tensor& buffer : module.buffers())
    if (buffer.defined()) return buffer.device();
  return c10::kCPU;
}

}  // namespace lockstep::inline v0
