#include "lockstep/device/event.h"

#include "lockstep/device/internal/guard.h"
#include "lockstep/device/stream.h"

namespace lockstep::inline v0::device {

Event::Event(c10::Device device) : device_(internal::numbered(device)) {
  if (!device_.is_cpu()) event_.emplace(device_.type());
}

void Event::record() {
  if (event_) event_->record(current_stream(device_));
}

void Event::record(const c10::Stream& stream) {
  if (event_) event_->record(stream);
}

void Event::block(const c10::Stream& stream) const {
  if (event_) event_->block(stream);
}

bool Event::reached() const {
  const internal::OnDevice on(device_);
  return !event_ || event_->query();
}

void Event::synchronize() const {
  if (event_) event_->synchronize();
}

}  // namespace lockstep::inline v0::device
