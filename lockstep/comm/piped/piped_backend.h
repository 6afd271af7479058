// An engine of a device whose calls go on through calls of an engine of the host. Not a public
// header.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/piped/part.h"

namespace lockstep::piped {

// What `host` can do, on `device`, by an engine of that name.
Capabilities on_device(Capabilities host, const std::string& name, c10::Device device);

// Calls take the `way` (part.h) on `capabilities.device`, which is not the CPU. They are moved by a
// thread of the backend, which ends with it; order() blocks until the device has all of a call, as
// a wait in `host` does, with that one's errors.
std::unique_ptr<Backend> make_piped_backend(std::unique_ptr<Backend> host, std::unique_ptr<Way> way,
                                            Capabilities capabilities, int rank);

}  // namespace lockstep::piped
