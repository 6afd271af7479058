// Arriving: the device side of a future's value, while tensors are still being copied to devices.
// Not for programs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::rpc::internal {

class LOCKSTEP_API Arriving {
 public:
  virtual ~Arriving() = default;
  // Orders later work of this thread's current streams after the arrival. The host does not wait.
  virtual void come_here() const = 0;
  // Adds the devices of its streams, each once.
  virtual void add_devices(std::vector<c10::Device>& devices) const = 0;
};

// Marks the work that this thread's current streams have been given so far, on these devices and on
// the tensors' devices. Null: there are no such devices.
LOCKSTEP_API std::shared_ptr<const Arriving> computed(std::vector<c10::Device> devices,
                                                      std::vector<at::Tensor> tensors);

}  // namespace lockstep::inline v0::rpc::internal
