// What a future's value is of, where tensors of devices are still on their way. Not for programs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace lockstep::rpc::internal {

class Arriving {
 public:
  virtual ~Arriving() = default;
  // What this thread's current streams are given from now on comes after it. The host does not wait.
  virtual void come_here() const = 0;
  // Adds those of its streams, each once.
  virtual void add_devices(std::vector<c10::Device>& devices) const = 0;
};

// What this thread's current streams of these devices, and of those that the tensors lie on, have been given so far. Null: there
// are none.
std::shared_ptr<const Arriving> computed(std::vector<c10::Device> devices,
                                         std::vector<at::Tensor> tensors);

}  // namespace lockstep::rpc::internal
