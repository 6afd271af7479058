// Streams of a device. What is given to one stream is done in order; what is given to two is not,
// unless an event orders it (event.h). c10::StreamGuard makes a stream the current one for a scope.
// On the CPU there is one stream, whose operations are over when they return.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace lockstep::device {

// This thread's current stream of the device: where its operations go.
c10::Stream current_stream(c10::Device device);

// A stream for work beside the current one. It is of the device's pool, which hands out a few dozen
// in turns: ask once and keep it. `urgent`: its work goes before that of others where the device
// can.
c10::Stream side_stream(c10::Device device, bool urgent = false);

// The process's one stream beside others for what is copied to the device ahead of its use:
// libtorch's allocator keeps memory for each stream, so that every loader's own would be much of it.
c10::Stream copy_stream(c10::Device device);

// What `later` is given from now on comes after what `earlier` has been given so far. The host does
// not wait. They may be of two devices of one type.
void order(const c10::Stream& earlier, const c10::Stream& later);

}  // namespace lockstep::device
