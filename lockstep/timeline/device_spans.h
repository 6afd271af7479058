// DeviceSpans: when a device did the work of spans, which the host only gives to it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/timeline/chrome_trace.h"
#include "lockstep/timeline/clock_offset.h"
#include "lockstep/timeline/span_log.h"

namespace lockstep::inline v0::timeline {

// Two events of the current stream for each span, which the device reaches when it comes to them.
// The host waits in the constructor and in events() only. Spans within the capture of a graph, of
// other threads, and beyond kMost are left out.
// Thread-safety: the thread that made it; begin() does nothing on others.
class DeviceSpans {
 public:
  static constexpr size_t kMost = 4096;
  static constexpr size_t kNone = SIZE_MAX;

  // Waits until the device has done what it was given.
  explicit DeviceSpans(c10::Device device);

  // Returns the argument of end().
  size_t begin(std::string_view name, int64_t number) noexcept;
  void end(size_t place) noexcept;
  // Waits for the device. `clock` converts ticks of this host.
  std::vector<Event> events(const TickClock& clock) const;
  uint64_t lost() const { return lost_; }  // spans beyond kMost

 private:
  struct Pair {
    Span span;  // its name and number
    c10::Event first, last;
    bool ended = false;
  };
  c10::Event make_event() const;

  c10::Device device_;
  std::thread::id thread_;
  c10::Event base_;
  uint64_t base_ticks_ = 0;
  std::vector<Pair> pairs_;
  uint64_t lost_ = 0;
};

}  // namespace lockstep::inline v0::timeline
