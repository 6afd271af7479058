#include "lockstep/flat/live_bytes.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include "lockstep/flat/internal/live_counter.h"

namespace lockstep::inline v0 {

LiveBytes::LiveBytes() {
  // The profiler's slot; a profiler would take any object there for its own.
  const auto place = c10::DebugInfoKind::PROFILER_STATE;
  if (auto* const there = c10::ThreadLocalDebugInfo::get(place); there != nullptr) {
    auto* const counter = dynamic_cast<Counter*>(there);
    if (counter == nullptr) return;
    counter_ = counter->shared_from_this();
    before_ = counter_->live();
    return;
  }
  counter_ = std::make_shared<Counter>();
  guard_ = std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, counter_);
}

LiveBytes::~LiveBytes() = default;

int64_t LiveBytes::now() const {
  return counter_ ? counter_->live() - before_ : 0;
}

int64_t LiveBytes::most() const {
  return counter_ ? counter_->most() - before_ : 0;
}

void LiveBytes::forget_most() {
  if (counter_) counter_->forget_most();
}

}  // namespace lockstep::inline v0
