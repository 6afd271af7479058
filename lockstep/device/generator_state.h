// The state of a device's default generator, from which dropout and initialisation on that device
// draw. The whole process has one: ranks that are threads share it when they share the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::device {

// Returns a uint8 tensor on the CPU, with the same bytes as Python's torch.get_rng_state() or
// torch.cuda.get_rng_state(). Later draws do not change it.
// Thread-safety: any thread.
LOCKSTEP_API at::Tensor generator_state(c10::Device device);

// Restores a state.
// Throws: InvalidArgument if it is not a state of such a device's generator, which then stays as it
// was.
// Thread-safety: any thread.
LOCKSTEP_API void set_generator_state(c10::Device device, const at::Tensor& state);

}  // namespace lockstep::inline v0::device
