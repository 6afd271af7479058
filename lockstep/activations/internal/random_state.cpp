#include "lockstep/activations/internal/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "lockstep/hooks/thread_generator.h"

namespace lockstep::inline v0::activations::internal {
namespace {

at::Generator default_generator(at::Device device) {
  return at::globalContext().defaultGenerator(device);
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Restores the previous state on destruction.
class Swapped {
 public:
  Swapped(at::Generator generator, const at::Tensor& state)
      : generator_(std::move(generator)), before_(state_of(generator_)) {
    set_state(generator_, state);
  }
  ~Swapped() { set_state(generator_, before_); }
  Swapped(const Swapped&) = delete;
  Swapped& operator=(const Swapped&) = delete;

 private:
  at::Generator generator_;
  at::Tensor before_;
};

}  // namespace

RandomState::RandomState(std::span<const at::Tensor> tensors) {
  const at::Generator own = hooks::ThreadGenerator::current();
  cpu_ = state_of(own.defined() ? own : default_generator(at::kCPU));
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) continue;
    const at::Device device = tensor.device();
    const bool known = std::any_of(devices_.begin(), devices_.end(),
                                   [&](const auto& one) { return one.first == device; });
    if (!known) devices_.emplace_back(device, state_of(default_generator(device)));
  }
}

// Does not change the CPU's default generator, because other threads draw from it.
void RandomState::run(const std::function<void()>& fn) const {
  std::vector<std::unique_ptr<Swapped>> swapped;
  for (const auto& [device, state] : devices_)
    swapped.push_back(std::make_unique<Swapped>(default_generator(device), state));
  if (const at::Generator here = hooks::ThreadGenerator::current(); here.defined()) {
    const Swapped own(here, cpu_);
    return fn();
  }
  at::Generator again = at::detail::createCPUGenerator();
  again.set_state(cpu_);
  const hooks::ThreadGenerator guard([&again]() -> const at::Generator& { return again; });
  fn();
}

}  // namespace lockstep::inline v0::activations::internal
