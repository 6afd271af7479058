// How the room reaches a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::device::internal {

// Of the device's type. Throws InvalidArgument where the program's libtorch has no such devices, or
// not one of this number.
c10::impl::VirtualGuardImpl guard_of(c10::Device device);

// The device with its number: the current one of its type where it names none.
c10::Device numbered(c10::Device device);

}  // namespace lockstep::device::internal
