// How the room reaches a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::device::internal {

// Of the device's type. Throws InvalidArgument where the program's libtorch has no such devices, or
// not one of this number.
c10::impl::VirtualGuardImpl guard_of(c10::Device device);

// The device with its number: the current one of its type where it names none.
c10::Device numbered(c10::Device device);

// This thread's current device while it lives; of the CPU nothing. What a driver does without saying for which device it does for
// the current one, and a thread that has chosen none would make that of number 0 ready, which takes hundreds of megabytes there.
class OnDevice {
 public:
  explicit OnDevice(c10::Device device) {
    if (!device.is_cpu()) guard_.reset_device(device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

}  // namespace lockstep::device::internal
