#include "lockstep/device/stream.h"

#include "lockstep/device/event.h"
#include "lockstep/device/internal/guard.h"

namespace lockstep::device {

c10::Stream current_stream(c10::Device device) {
  const c10::Device one = internal::numbered(device);
  return internal::guard_of(one).getStream(one);
}

c10::Stream side_stream(c10::Device device, bool urgent) {
  const c10::Device one = internal::numbered(device);
  if (one.is_cpu()) return current_stream(one);
  return internal::guard_of(one).getStreamFromGlobalPool(one, urgent);
}

void order(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  Event event(earlier.device());
  event.record(earlier);
  event.block(later);
}

}  // namespace lockstep::device
