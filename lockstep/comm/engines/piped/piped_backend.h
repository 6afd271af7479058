// A device's engine whose calls run as calls of a host engine. Not a public header.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/piped/part.h"

namespace lockstep::inline v0::piped {

// The capabilities of `host` for tensors on `device`, under the engine's name `name`.
Capabilities on_device(Capabilities host, const std::string& name, c10::Device device);

// Calls use `path` (part.h) on `capabilities.device`, which is not the CPU. A thread of the
// backend, which ends with it, progresses them. order() blocks until the device has been given all
// of a call, like a wait in `host` and with its errors.
std::unique_ptr<Backend> make_piped_backend(std::unique_ptr<Backend> host,
                                            std::unique_ptr<DataPath> path,
                                            Capabilities capabilities, int rank);

}  // namespace lockstep::inline v0::piped
