// The state of libtorch's default CPU generator, from which dropout and initialisation draw. It is
// one for the whole process: ranks that are threads share it.
#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace lockstep
