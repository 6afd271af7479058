// Streams of a device. Work of one stream is executed in order; work of two streams is not, unless
// an event orders it (event.h). c10::StreamGuard makes a stream the current one for a scope. The
// CPU has one stream, whose operations are finished when they return.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::device {

// This thread's current stream of the device, which receives its operations.
LOCKSTEP_API c10::Stream current_stream(c10::Device device);

// A stream for work beside the current one, from the device's pool, which hands out a few dozen in
// turn: ask once and keep the stream. `urgent`: its work has priority over that of other streams,
// if the device supports it.
LOCKSTEP_API c10::Stream side_stream(c10::Device device, bool urgent = false);

// The process's single stream for copies to the device ahead of their use. It is shared because
// libtorch's allocator keeps memory for each stream, so a stream per loader would hold a lot of it.
LOCKSTEP_API c10::Stream copy_stream(c10::Device device);

// Orders later work of `later` after the work that `earlier` has been given so far, without waiting
// on the host. The streams may belong to two devices of one type.
LOCKSTEP_API void order(const c10::Stream& earlier, const c10::Stream& later);

}  // namespace lockstep::inline v0::device
