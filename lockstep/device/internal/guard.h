// How this room accesses a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::inline v0::device::internal {

// The guard of the device's type. Throws InvalidArgument if the program's libtorch has no such
// devices, or none with this number.
c10::impl::VirtualGuardImpl guard_of(c10::Device device);

// The device with its number: the current one of its type if it has none.
c10::Device numbered(c10::Device device);

// Makes the device this thread's current one during its lifetime; does nothing for the CPU. A
// driver's calls without a device use the current one; on a thread that has chosen none they would
// initialise device 0, which takes hundreds of megabytes there.
class OnDevice {
 public:
  explicit OnDevice(c10::Device device) {
    if (!device.is_cpu()) guard_.reset_device(device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

}  // namespace lockstep::inline v0::device::internal
