#include "lockstep/checkpoint/rng_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include "lockstep/core/errors.h"

namespace lockstep {

namespace {

void take_over(at::Generator& generator, const at::Tensor& state, const std::string& source) {
  try {
    generator.set_state(state.clone());  // a view into a larger tensor is refused
  } catch (const c10::Error& error) {
    throw CheckpointError(source + ": is not the state of a CPU generator");
  }
}

}  // namespace

at::Tensor cpu_rng_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_cpu_rng_state(const at::Tensor& state, const std::string& source) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  take_over(generator, state, source);
}

void derive_cpu_rng_state(const at::Tensor& state, int rank, const std::string& source) {
  at::Generator first = at::detail::createCPUGenerator();
  take_over(first, state, source);
  uint64_t seed = 0;
  for (int r = 0; r <= rank; ++r) seed = first.get<at::CPUGeneratorImpl>()->random64();
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace lockstep
