// Memory of a device, and host memory that the device copies from and to.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::device {

// In bytes, of this process.
struct MemoryUse {
  int64_t in_use = 0;    // by tensors
  int64_t peak = 0;      // the maximum of in_use since the start or the last reset_peak_memory()
  int64_t reserved = 0;  // taken from the device by libtorch's allocator, freed parts included
};
// The counts of libtorch's allocator, read on the host: the device is not asked. nullopt for the
// CPU, whose memory is the process's (core/process_memory.h).
LOCKSTEP_API std::optional<MemoryUse> memory_use(c10::Device device);
// Restarts the peak at the memory in use now. Does nothing for the CPU.
LOCKSTEP_API void reset_peak_memory(c10::Device device);

// An empty tensor in pinned host memory, from and to which `device` copies without making the host
// wait; plain memory for the CPU. After a copy with non_blocking, the tensor must stay untouched
// until the copy has finished (event.h).
LOCKSTEP_API at::Tensor empty_pinned(at::IntArrayRef sizes, at::ScalarType dtype,
                                     c10::Device device);
// The same for a dense tensor of a device: with its dtype, sizes and strides.
LOCKSTEP_API at::Tensor empty_pinned_like(const at::Tensor& tensor);

// A copy of `host` on `device`, made through pinned memory on this thread's current stream there,
// without waiting on the host. If `device` is the CPU, or `host` is not on the CPU, the same as
// Tensor::to().
LOCKSTEP_API at::Tensor copy_to(const at::Tensor& host, c10::Device device);

}  // namespace lockstep::inline v0::device
