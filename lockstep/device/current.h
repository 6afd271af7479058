// The current device of a thread: the device that torch::kCUDA without a number denotes.
//
// In all functions of this room, a device without a number is the current one of its type, and the
// CPU is a device too, on which no work is ever pending.
// Throws: InvalidArgument for a device that does not exist, c10::Error for an error of the device's
// driver.
#pragma once

#include <c10/core/Device.h>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::device {

// Sets this thread's current device; c10::DeviceGuard does it for a scope. The CPU does not change
// the current devices of other types.
LOCKSTEP_API void set_current(c10::Device device);

// This thread's current device of that type.
LOCKSTEP_API c10::Device current(c10::DeviceType type);

// Waits on the host until the device has finished all submitted work, on all its streams.
LOCKSTEP_API void synchronize(c10::Device device);

}  // namespace lockstep::inline v0::device
