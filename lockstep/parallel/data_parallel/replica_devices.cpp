#include <torch/cuda.h>
#include <torch/nn/module.h>

#include "lockstep/parallel/data_parallel/replicas.h"

namespace lockstep::inline v0::data_parallel {

std::vector<at::Device> devices_for(const torch::nn::Module& module,
                                    const DataParallelOptions& options) {
  std::vector<at::Device> devices = options.devices;
  std::optional<at::Device> own;
  for (const at::Tensor& parameter : module.parameters()) {
    if (!own) own = parameter.device();
  }
  if (devices.empty() && own && own->is_cuda()) {
    // The model's device comes first, because the model is there.
    devices.push_back(*own);
    for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) {
      if (own->index() != i) devices.emplace_back(at::kCUDA, i);
    }
  } else if (devices.empty()) {
    if (options.replicas < 1) {
      throw InvalidArgument("DataParallel: " + std::to_string(options.replicas) +
                            " replicas; at least 1");
    }
    devices.assign(static_cast<size_t>(options.replicas), at::Device(at::kCPU));
  }
  if (options.dim < 0) {
    throw InvalidArgument("DataParallel: dimension " + std::to_string(options.dim) +
                          "; count from the front, from 0");
  }
  const auto on_first = [&](const at::Tensor& tensor) {
    return !tensor.defined() || tensor.device() == devices[0];
  };
  for (const auto& item : module.named_parameters()) {
    if (!on_first(item.value())) {
      throw InvalidArgument("DataParallel: parameter '" + item.key() + "' is on " +
                            item.value().device().str() + ", the first device is " +
                            devices[0].str() + "; move the model there first");
    }
  }
  return devices;
}

}  // namespace lockstep::inline v0::data_parallel
