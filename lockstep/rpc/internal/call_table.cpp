#include "lockstep/rpc/internal/call_table.h"

#include <algorithm>

namespace lockstep::rpc::internal {

// A number is the slot's index and, above it, how often the slot has been used.
bool CallTable::insert(const PendingPtr& call) {
  const MutexLock lock(mutex_);
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  call->number = uint64_t{slot.generation} << 32 | index;
  slot.call = call;
  ++size_;
  if (!call->ends) return false;
  const Time end = call->ends->time();
  const bool first = ends_.empty() || end < ends_.front().time;
  if (ends_.size() > 64 && ends_.size() > 4 * size_) drop_dead_ends();
  ends_.push_back({end, call->number});
  std::push_heap(ends_.begin(), ends_.end(), std::greater<>());
  return first;
}

bool CallTable::living(uint64_t number) const {
  const size_t index = number & 0xffffffff;
  return index < slots_.size() && slots_[index].call && slots_[index].generation == number >> 32;
}

PendingPtr CallTable::take_slot(size_t index) {
  PendingPtr call = std::move(slots_[index].call);
  slots_[index].call = nullptr;
  if (++slots_[index].generation == 0) slots_[index].generation = 1;
  free_.push_back(static_cast<uint32_t>(index));
  if (--size_ == 0) emptied_.notify_all();
  return call;
}

PendingPtr CallTable::take(uint64_t number) {
  const MutexLock lock(mutex_);
  return living(number) ? take_slot(number & 0xffffffff) : nullptr;
}

template <typename Wanted>
std::vector<PendingPtr> CallTable::take_if(Wanted wanted) {
  std::vector<PendingPtr> taken;
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].call && wanted(*slots_[i].call)) taken.push_back(take_slot(i));
  return taken;
}

std::vector<PendingPtr> CallTable::take_of(const Link& link) {
  return take_if([&](const Pending& call) { return call.link.get() == &link; });
}

std::vector<PendingPtr> CallTable::take_all() {
  return take_if([](const Pending&) { return true; });
}

std::vector<PendingPtr> CallTable::take_late(Time now) {
  std::vector<PendingPtr> taken;
  const MutexLock lock(mutex_);
  while (!ends_.empty() && ends_.front().time <= now) {
    const uint64_t number = ends_.front().number;
    std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
    ends_.pop_back();
    if (living(number)) taken.push_back(take_slot(number & 0xffffffff));
  }
  return taken;
}

std::optional<CallTable::Time> CallTable::next_end() {
  const MutexLock lock(mutex_);
  while (!ends_.empty() && !living(ends_.front().number)) {
    std::pop_heap(ends_.begin(), ends_.end(), std::greater<>());
    ends_.pop_back();
  }
  if (ends_.empty()) return std::nullopt;
  return ends_.front().time;
}

void CallTable::drop_dead_ends() {
  size_t kept = 0;
  for (const End& end : ends_)
    if (living(end.number)) ends_[kept++] = end;
  ends_.resize(kept, End{{}, 0});
  std::make_heap(ends_.begin(), ends_.end(), std::greater<>());
}

size_t CallTable::size() const {
  const MutexLock lock(mutex_);
  return size_;
}

bool CallTable::wait_empty(Deadline deadline) {
  MutexLock lock(mutex_);
  while (size_ > 0)
    if (!emptied_.wait_until(lock, deadline.time())) return size_ == 0;
  return true;
}

std::vector<PendingPtr> CallTable::list() const {
  std::vector<PendingPtr> all;
  const MutexLock lock(mutex_);
  for (const Slot& slot : slots_)
    if (slot.call) all.push_back(slot.call);
  return all;
}

}  // namespace lockstep::rpc::internal
