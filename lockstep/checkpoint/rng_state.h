// The state of libtorch's default generators, which dropout and initialisation use. They are
// process-wide: ranks that are threads share them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// A uint8 tensor, the same bytes as Python's torch.get_rng_state(). Thread-safe.
LOCKSTEP_API at::Tensor cpu_rng_state();
// Restores it.
// Throws: CheckpointError that begins with `source` if it is not such a state. Thread-safe.
LOCKSTEP_API void set_cpu_rng_state(const at::Tensor& state, const std::string& source);
// Another stream for each rank, all derived from that one state: for a run that continues with more
// ranks than it has states for. Throws likewise. Thread-safe.
LOCKSTEP_API void derive_cpu_rng_state(const at::Tensor& state, int rank,
                                       const std::string& source);

// The same for all generators of a rank that trains on `device`: the CPU's bytes and, for another
// device, that one's (device/generator_state.h). A state that was taken on the CPU leaves the
// device's generator unchanged.
LOCKSTEP_API at::Tensor rng_state(at::Device device);
LOCKSTEP_API void set_rng_state(const at::Tensor& state, at::Device device,
                                const std::string& source);
LOCKSTEP_API void derive_rng_state(const at::Tensor& state, int rank, at::Device device,
                                   const std::string& source);

}  // namespace lockstep::inline v0
