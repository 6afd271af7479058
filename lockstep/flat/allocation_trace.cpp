#include "lockstep/flat/allocation_trace.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/internal/allocation_record.h"
#include "lockstep/flat/internal/live_counter.h"

namespace lockstep::inline v0 {

int64_t most_at_once(const AllocationTrace& trace) {
  int64_t live = 0, most = 0;
  for (const AllocationEvent& event : trace) most = std::max(most, live += event.bytes);
  return most;
}

std::vector<size_t> left_over(const AllocationTrace& trace) {
  std::vector<bool> left;
  for (const AllocationEvent& event : trace) {
    left.push_back(event.bytes > 0);
    if (event.of != AllocationEvent::kNone) left[static_cast<size_t>(event.of)] = false;
  }
  std::vector<size_t> events;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i]) events.push_back(i);
  }
  return events;
}

AllocationTrace without(AllocationTrace trace, const std::vector<size_t>& allocations) {
  for (const size_t i : allocations) trace.at(i).bytes = 0;
  for (AllocationEvent& event : trace) {
    if (event.of != AllocationEvent::kNone && trace[static_cast<size_t>(event.of)].bytes == 0)
      event.bytes = 0;
  }
  return trace;
}

int64_t on_line(int64_t of_few, int64_t few, int64_t of_more, int64_t more, int64_t samples) {
  LOCKSTEP_CHECK(few < more, "a line goes through two points");
  // Of sizes up to 2^62 and any number of samples the product may exceed 64 bits.
  const __int128 rise = static_cast<__int128>(of_more - of_few) * (samples - few);
  const __int128 run = more - few;
  const __int128 up = rise > 0 ? (rise + run - 1) / run : rise / run;
  return of_few + static_cast<int64_t>(up);
}

std::optional<AllocationTrace> extended(const AllocationTrace& of_few, int64_t few,
                                        const AllocationTrace& of_more, int64_t more,
                                        int64_t samples) {
  if (of_few.size() != of_more.size()) return std::nullopt;
  AllocationTrace all;
  all.reserve(of_few.size());
  for (size_t i = 0; i < of_few.size(); ++i) {
    const AllocationEvent &one = of_few[i], &other = of_more[i];
    if (one.of != other.of || (one.bytes > 0) != (other.bytes > 0)) return std::nullopt;
    AllocationEvent event{.of = one.of};
    event.bytes = one.of != AllocationEvent::kNone
                      ? -all[static_cast<size_t>(one.of)].bytes
                      : on_line(one.bytes, few, other.bytes, more, samples);
    all.push_back(event);
  }
  return all;
}

AllocationLog::AllocationLog() {
  if (live_.counter_ == nullptr) return;
  if (!live_.counter_->begin_record())
    throw InvalidArgument("AllocationLog: another one records on this thread; end it first");
}

AllocationLog::~AllocationLog() {
  if (live_.counter_ != nullptr) live_.counter_->end_record();
}

AllocationTrace AllocationLog::trace() const {
  const auto record = live_.counter_ ? live_.counter_->record() : nullptr;
  return record ? record->trace() : AllocationTrace{};
}

void AllocationLog::leave_out(bool on) {
  if (const auto record = live_.counter_ ? live_.counter_->record() : nullptr)
    record->leave_out(on);
}

std::optional<size_t> AllocationLog::allocation_of(const at::Tensor& tensor) const {
  const auto record = live_.counter_ ? live_.counter_->record() : nullptr;
  if (!record || !tensor.defined() || !tensor.has_storage()) return std::nullopt;
  return record->allocation_of(tensor.storage().data());
}

}  // namespace lockstep::inline v0
