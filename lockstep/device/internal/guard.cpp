#include "lockstep/device/internal/guard.h"

#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::device::internal {

c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  if (!c10::impl::hasDeviceGuardImpl(device.type())) {
    throw InvalidArgument("device " + device.str() +
                          ": this program's libtorch has no such devices");
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (!device.is_cpu() && device.index() >= guard.deviceCount()) {
    throw InvalidArgument("device " + device.str() + ": this process sees " +
                          std::to_string(guard.deviceCount()) + " devices of that kind");
  }
  return guard;
}

c10::Device numbered(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard = guard_of(device);
  return device.is_cpu() || device.has_index() ? device : guard.getDevice();
}

}  // namespace lockstep::inline v0::device::internal
