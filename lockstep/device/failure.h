// The failure of a device: an error after which the process can no longer use it, so that only
// another process can go on, on this device or on another one.
#pragma once

#include <c10/core/Device.h>

#include <exception>
#include <optional>
#include <string>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::device {

struct DeviceFailure {
  c10::Device device = c10::Device(c10::kCPU);
  int code = 0;      // cudaError_t
  std::string what;  // "CUDA error: an illegal memory access was encountered"
};

// The failure of the calling thread's current CUDA device that `error` reports: an uncorrectable
// memory error (ECC), a lost device or link, an illegal memory access, and whatever else leaves
// CUDA unusable in this process. nullopt for every other error, memory that does not suffice among
// them. It is libtorch's c10::AcceleratorError, with a code of "CUDA Runtime API, cudaError"; an
// error of cuBLAS or cuDNN, which has none, is one if the device has failed by then.
LOCKSTEP_API std::optional<DeviceFailure> device_failure(const std::exception& error);

// Throws the device's own error where it has failed already. Does not wait for its work. Nothing
// for the CPU.
// Throws: c10::AcceleratorError.
LOCKSTEP_API void throw_if_failed(c10::Device device);

}  // namespace lockstep::inline v0::device
