// The current device of a thread: the one that torch::kCUDA without a number means.
//
// Of all functions of this room: a device without a number is the current one of its type; the CPU
// is a device too, on which nothing is ever under way. InvalidArgument is thrown for a device that
// is not there, c10::Error for what the device's driver says.
#pragma once

#include <c10/core/Device.h>

namespace lockstep::device {

// For this thread alone, from now on; c10::DeviceGuard does it for a scope. The CPU leaves the
// current device of other types as it is.
void set_current(c10::Device device);

// This thread's.
c10::Device current(c10::DeviceType type);

// The host waits until the device is through with all that it has been given, on all its streams.
void synchronize(c10::Device device);

}  // namespace lockstep::device
