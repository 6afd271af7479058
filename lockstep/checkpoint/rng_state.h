// The state of libtorch's default generators, from which dropout and initialisation draw. They are
// one for the whole process: ranks that are threads share them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>

namespace lockstep {

// A uint8 tensor, the same bytes as Python's torch.get_rng_state(). Thread-safe.
at::Tensor cpu_rng_state();
// Puts it back. Throws CheckpointError that begins with `source` if it is not such a state.
// Thread-safe.
void set_cpu_rng_state(const at::Tensor& state, const std::string& source);
// Another stream for each rank, all of them drawn from that one state: for a run that goes on with
// another number of ranks than it has states of. Throws likewise. Thread-safe.
void derive_cpu_rng_state(const at::Tensor& state, int rank, const std::string& source);

// The same of all that a rank draws from which trains on `device`: the CPU's bytes, then, of another
// device, that one's (device/generator_state.h). Of a state that was taken on the CPU, the device's
// generator stays as it is.
at::Tensor rng_state(at::Device device);
void set_rng_state(const at::Tensor& state, at::Device device, const std::string& source);
void derive_rng_state(const at::Tensor& state, int rank, at::Device device,
                      const std::string& source);

}  // namespace lockstep
