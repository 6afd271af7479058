#include "lockstep/rpc/internal/timers.h"

#include <algorithm>
#include <utility>

namespace lockstep::rpc::internal {

uint64_t Timers::add(Time when, Task task) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t place = free_.back();
  free_.pop_back();
  Slot& slot = slots_[place];
  slot.task = std::move(task);
  const uint64_t timer = uint64_t{slot.age} << 32 | place;
  heap_.push_back({when, timer});
  std::push_heap(heap_.begin(), heap_.end());
  ++live_;
  return timer;
}

Timers::Slot* Timers::slot_of(uint64_t timer) {
  const auto place = static_cast<uint32_t>(timer);
  if (place >= slots_.size()) return nullptr;
  Slot& slot = slots_[place];
  return slot.age == timer >> 32 && slot.task ? &slot : nullptr;
}

Task Timers::empty(uint64_t timer) {
  Slot* slot = slot_of(timer);
  if (!slot) return nullptr;
  Task task = std::move(slot->task);
  slot->task = nullptr;
  if (++slot->age == 0) slot->age = 1;
  free_.push_back(static_cast<uint32_t>(timer));
  --live_;
  return task;
}

Task Timers::cancel(uint64_t timer) {
  Task task = empty(timer);
  if (task && heap_.size() > 64 && live_ < heap_.size() / 2) {
    std::erase_if(heap_, [this](const Entry& entry) { return !slot_of(entry.timer); });
    std::make_heap(heap_.begin(), heap_.end());
  }
  return task;
}

void Timers::drop_stale() {
  while (!heap_.empty() && !slot_of(heap_.front().timer)) {
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
  }
}

std::optional<Timers::Time> Timers::next() {
  drop_stale();
  if (heap_.empty()) return std::nullopt;
  return heap_.front().when;
}

Task Timers::take_due(Time now) {
  const auto when = next();
  if (!when || *when > now) return nullptr;
  Task task = empty(heap_.front().timer);
  std::pop_heap(heap_.begin(), heap_.end());
  heap_.pop_back();
  return task;
}

std::vector<Task> Timers::take_all() {
  std::vector<Task> tasks;
  for (const Entry& entry : heap_)
    if (Task task = empty(entry.timer)) tasks.push_back(std::move(task));
  heap_.clear();
  return tasks;
}

}  // namespace lockstep::rpc::internal
