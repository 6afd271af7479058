#include "lockstep/device/stream.h"

#include <map>
#include <utility>

#include "lockstep/core/mutex.h"
#include "lockstep/device/event.h"
#include "lockstep/device/internal/guard.h"

namespace lockstep::inline v0::device {

c10::Stream current_stream(c10::Device device) {
  const c10::Device one = internal::numbered(device);
  return internal::guard_of(one).getStream(one);
}

c10::Stream side_stream(c10::Device device, bool urgent) {
  const c10::Device one = internal::numbered(device);
  if (one.is_cpu()) return current_stream(one);
  return internal::guard_of(one).getStreamFromGlobalPool(one, urgent);
}

c10::Stream copy_stream(c10::Device device) {
  static Mutex mutex;
  static std::map<c10::Device, c10::Stream, bool (*)(c10::Device, c10::Device)> streams(
      [](c10::Device a, c10::Device b) {
        return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
      });
  const c10::Device one = internal::numbered(device);
  const MutexLock lock(mutex);
  const auto found = streams.find(one);
  if (found != streams.end()) return found->second;
  return streams.emplace(one, side_stream(one)).first->second;
}

void order(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  Event event(earlier.device());
  event.record(earlier);
  event.block(later);
}

}  // namespace lockstep::inline v0::device
