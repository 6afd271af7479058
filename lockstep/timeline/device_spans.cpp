#include "lockstep/timeline/device_spans.h"

#include <cmath>
#include <exception>

#include "lockstep/core/ticks.h"
#include "lockstep/device/graph.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::timeline {

DeviceSpans::DeviceSpans(c10::Device device)
    : device_(device), thread_(std::this_thread::get_id()), base_(make_event()) {
  pairs_.reserve(kMost);
  base_.record(device::current_stream(device_));
  base_.synchronize();
  base_ticks_ = ticks();
}

// BACKEND_DEFAULT is the flag of events that measure time.
c10::Event DeviceSpans::make_event() const {
  return {device_.type(), c10::EventFlag::BACKEND_DEFAULT};
}

size_t DeviceSpans::begin(std::string_view name, int64_t number) noexcept {
  if (std::this_thread::get_id() != thread_) return kNone;
  try {
    if (device::captures_here()) return kNone;
    if (pairs_.size() == kMost) {
      ++lost_;
      return kNone;
    }
    Pair pair{.span = {}, .first = make_event(), .last = make_event()};
    put_name(name, pair.span.name);
    pair.span.number = number;
    pair.first.record(device::current_stream(device_));
    pairs_.push_back(std::move(pair));
    return pairs_.size() - 1;
  } catch (
      const std::exception&) {  // what the device reports, the program's own next call does too
    return kNone;
  }
}

void DeviceSpans::end(size_t place) noexcept {
  if (std::this_thread::get_id() != thread_ || place >= pairs_.size()) return;
  try {
    if (device::captures_here()) return;
    pairs_[place].last.record(device::current_stream(device_));
    pairs_[place].ended = true;
  } catch (const std::exception&) {
  }
}

std::vector<Event> DeviceSpans::events(const TickClock& clock) const {
  std::vector<Event> events;
  const int64_t base_ns = clock.ns(base_ticks_);
  const auto ns = [&](const c10::Event& event) {
    event.synchronize();
    return base_ns + std::llround(base_.elapsedTime(event) * 1e6);  // converts from milliseconds
  };
  for (const Pair& pair : pairs_) {
    if (!pair.ended) continue;
    Event& event = events.emplace_back();
    event.name = pair.span.text();
    event.category = kOnDevice;
    event.track = TrackKind::kDevice;
    event.begin_ns = ns(pair.first);
    event.end_ns = ns(pair.last);
    if (pair.span.number >= 0) event.numbers.emplace_back("number", pair.span.number);
  }
  return events;
}

}  // namespace lockstep::inline v0::timeline
