// What the host has made for a pass, given to the device that computes it.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/device/memory.h"

namespace lockstep::internal {

// `host` on `device`: a copy through pinned memory, for which the host does not wait; of the CPU, itself.
inline at::Tensor on_device(const at::Tensor& host, at::Device device) {
  if (device.is_cpu() || !host.is_cpu()) return host.to(device);
  return device::empty_pinned(host.sizes(), host.scalar_type(), device)
      .copy_(host)
      .to(device, /*non_blocking=*/true);
}

}  // namespace lockstep::internal
