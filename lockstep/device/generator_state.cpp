#include "lockstep/device/generator_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <mutex>

#include "lockstep/core/errors.h"
#include "lockstep/device/internal/guard.h"

namespace lockstep::inline v0::device {

at::Tensor generator_state(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(internal::numbered(device));
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(c10::Device device, const at::Tensor& state) {
  const c10::Device one = internal::numbered(device);
  at::Generator generator = at::globalContext().defaultGenerator(one);
  const std::lock_guard lock(generator.mutex());
  try {
    generator.set_state(state.clone());  // a view into a larger tensor would be refused
  } catch (const c10::Error&) {
    throw InvalidArgument("set_generator_state: the tensor is not the state of a generator of " +
                          one.str());
  }
}

}  // namespace lockstep::inline v0::device
