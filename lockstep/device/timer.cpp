#include "lockstep/device/timer.h"

#include "lockstep/core/errors.h"
#include "lockstep/device/internal/guard.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::device {

DeviceTimer::DeviceTimer(c10::Device device) : device_(internal::numbered(device)) {
  // BACKEND_DEFAULT is the flag of events that measure time.
  if (!device_.is_cpu()) {
    events_.emplace(Events{c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT),
                           c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT)});
  }
}

void DeviceTimer::start() {
  state_ = State::kRunning;
  if (events_)
    events_->first.record(current_stream(device_));
  else
    first_ = std::chrono::steady_clock::now();
}

void DeviceTimer::stop() {
  if (state_ != State::kRunning) throw InvalidArgument("DeviceTimer: stop() comes after start()");
  if (events_)
    events_->last.record(current_stream(device_));
  else
    last_ = std::chrono::steady_clock::now();
  state_ = State::kStopped;
}

std::optional<double> DeviceTimer::seconds() const {
  if (state_ != State::kStopped) return std::nullopt;
  if (!events_) return std::chrono::duration<double>(last_ - first_).count();
  if (!events_->last.query() || !events_->first.query()) return std::nullopt;
  return events_->first.elapsedTime(events_->last) / 1000;  // converts from milliseconds
}

double DeviceTimer::wait() const {
  if (state_ != State::kStopped)
    throw InvalidArgument("DeviceTimer: there is a time once stop() was called");
  if (events_) {
    events_->first.synchronize();  // the two may be on different streams
    events_->last.synchronize();
  }
  return *seconds();
}

}  // namespace lockstep::inline v0::device
