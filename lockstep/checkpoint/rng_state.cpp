#include "lockstep/checkpoint/rng_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <mutex>

#include "lockstep/core/errors.h"
#include "lockstep/device/generator_state.h"

namespace lockstep::inline v0 {

namespace {

void take_over(at::Generator& generator, const at::Tensor& state, const std::string& source) {
  try {
    generator.set_state(state.clone());  // a view into a larger tensor would be refused
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

namespace {

// Seeds for the CPU's generator and, after it, a device's.
struct Seeds {
  uint64_t cpu, device;
};
Seeds seeds_from(const at::Tensor& state, int rank, const std::string& source) {
  at::Generator first = at::detail::createCPUGenerator();
  take_over(first, state, source);
  auto* const stream = first.get<at::CPUGeneratorImpl>();
  uint64_t seed = 0;
  for (int r = 0; r <= rank; ++r) seed = stream->random64();
  return {seed, stream->random64()};
}

void seed(at::Generator generator, uint64_t seed) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

struct States {
  at::Tensor cpu, device;  // `device` has no bytes if there is none
};
States parts_of(const at::Tensor& state) {
  const int64_t cpu = std::min(state.numel(), cpu_rng_state().numel());
  return {state.narrow(0, 0, cpu), state.narrow(0, cpu, state.numel() - cpu)};
}

}  // namespace

void derive_cpu_rng_state(const at::Tensor& state, int rank, const std::string& source) {
  seed(at::detail::getDefaultCPUGenerator(), seeds_from(state, rank, source).cpu);
}

at::Tensor rng_state(at::Device device) {
  if (device.is_cpu()) return cpu_rng_state();
  return at::cat({cpu_rng_state(), device::generator_state(device)});
}

void set_rng_state(const at::Tensor& state, at::Device device, const std::string& source) {
  const States states = parts_of(state);
  set_cpu_rng_state(states.cpu, source);
  if (device.is_cpu() || states.device.numel() == 0) return;
  try {
    device::set_generator_state(device, states.device.clone());
  } catch (const InvalidArgument& error) {
    throw CheckpointError(source + ": " + error.what());
  }
}

void derive_rng_state(const at::Tensor& state, int rank, at::Device device,
                      const std::string& source) {
  const at::Tensor cpu = parts_of(state).cpu;
  derive_cpu_rng_state(cpu, rank, source);
  if (!device.is_cpu())
    seed(at::globalContext().defaultGenerator(device), seeds_from(cpu, rank, source).device);
}

}  // namespace lockstep::inline v0
