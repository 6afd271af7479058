#include "lockstep/checkpoint/rng_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include "lockstep/core/errors.h"

namespace lockstep {

at::Tensor cpu_rng_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_cpu_rng_state(const at::Tensor& state, const std::string& source) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  try {
    generator.set_state(state.clone());  // a view into a larger tensor is refused
  } catch (const c10::Error& error) {
    throw CheckpointError(source + ": is not the state of a CPU generator");
  }
}

}  // namespace lockstep
