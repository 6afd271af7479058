#include "lockstep/device/current.h"

#include "lockstep/device/internal/guard.h"

namespace lockstep::inline v0::device {

void set_current(c10::Device device) {
  const auto guard = internal::guard_of(device);
  if (!device.is_cpu() && device.has_index()) guard.setDevice(device);
}

c10::Device current(c10::DeviceType type) {
  return internal::numbered(c10::Device(type));
}

void synchronize(c10::Device device) {
  const c10::Device one = internal::numbered(device);
  if (!one.is_cpu()) internal::guard_of(one).synchronizeDevice(one.index());
}

}  // namespace lockstep::inline v0::device
