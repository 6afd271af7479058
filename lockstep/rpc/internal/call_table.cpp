#include "lockstep/rpc/internal/call_table.h"

namespace lockstep::inline v0::rpc::internal {

bool CallTable::insert(const PendingPtr& call) {
  const MutexLock lock(mutex_);
  const Time end = call->ends->time();
  const bool first = calls_.is_before_all(end);
  call->number = calls_.add(end, call);
  return first;
}

template <typename Take>
auto CallTable::taken(Take take) {
  const MutexLock lock(mutex_);
  auto calls = take(calls_);
  if (calls_.size() == 0) emptied_.notify_all();
  return calls;
}

PendingPtr CallTable::take(uint64_t number, const Link* over) {
  return taken([&](auto& calls) -> PendingPtr {
    const PendingPtr* const call = calls.find(number);
    if (call == nullptr || (over != nullptr && (*call)->link.get() != over)) return nullptr;
    return calls.take(number);
  });
}

std::vector<PendingPtr> CallTable::take_of(const Link& link) {
  return taken([&](auto& calls) {
    return calls.take_if([&](const PendingPtr& call) { return call->link.get() == &link; });
  });
}

std::vector<PendingPtr> CallTable::take_all() {
  return taken([](auto& calls) { return calls.take_all(); });
}

std::vector<PendingPtr> CallTable::take_late(Time now) {
  return taken([&](auto& calls) {
    std::vector<PendingPtr> late;
    while (PendingPtr call = calls.take_due(now)) late.push_back(std::move(call));
    return late;
  });
}

std::optional<CallTable::Time> CallTable::next_end() {
  const MutexLock lock(mutex_);
  return calls_.next();
}

bool CallTable::wait_empty(Deadline deadline) {
  MutexLock lock(mutex_);
  while (calls_.size() > 0)
    if (!emptied_.wait_until(lock, deadline.time())) return calls_.size() == 0;
  return true;
}

std::vector<PendingPtr> CallTable::list() const {
  std::vector<PendingPtr> all;
  const MutexLock lock(mutex_);
  calls_.for_each([&](const PendingPtr& call) { all.push_back(call); });
  return all;
}

}  // namespace lockstep::inline v0::rpc::internal
