// Memory of a device, and host memory that it copies from.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace lockstep::device {

// In bytes, of this process.
struct MemoryUse {
  int64_t in_use = 0;    // by tensors
  int64_t peak = 0;      // the most of that since the start, or since reset_peak_memory()
  int64_t reserved = 0;  // taken from the device by libtorch's allocator, freed parts included
};
// As libtorch's allocator counts it, on the host: the device is not asked. nullopt for the CPU,
// whose memory is the process's (core/process_memory.h).
std::optional<MemoryUse> memory_use(c10::Device device);
// Begins a new peak at what is in use now. Of the CPU: nothing.
void reset_peak_memory(c10::Device device);

// An empty tensor in host memory that `device` copies from and to without the host's waiting:
// pinned. For the CPU it is plain memory. Who copies with non_blocking leaves it alone until the
// copy is over (event.h).
at::Tensor empty_pinned(at::IntArrayRef sizes, at::ScalarType dtype, c10::Device device);
// The same for a tensor of a device, which is dense: of its dtype, sizes and strides.
at::Tensor empty_pinned_like(const at::Tensor& tensor);

// `host` on `device`: a copy through pinned memory, on this thread's current stream there, for which
// the host does not wait. To the CPU, or of what is not on it, what Tensor::to() gives.
at::Tensor copy_to(const at::Tensor& host, c10::Device device);

}  // namespace lockstep::device
