// The engine of a rank that is alone, for tensors of its device: outputs equal inputs, in the order
// of the device's streams, and the host never waits.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "lockstep/comm/backend/backend.h"

namespace lockstep::inline v0 {

// `device` is not the CPU. There are no messages, since there is no peer.
std::unique_ptr<Backend> make_lone_device_backend(c10::Device device);

}  // namespace lockstep::inline v0
