// The state of a device's default generator, from which dropout and initialisation on that device
// draw. It is one for the whole process: ranks that are threads share it where they share the
// device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace lockstep::device {

// A uint8 tensor on the CPU, the same bytes as Python's torch.get_rng_state() or
// torch.cuda.get_rng_state(). Operations of the device that draw later do not change it.
// Thread-safe.
at::Tensor generator_state(c10::Device device);

// Puts one back. Throws InvalidArgument where it is not the state of such a device's generator,
// which is left as it was. Thread-safe.
void set_generator_state(c10::Device device, const at::Tensor& state);

}  // namespace lockstep::device
