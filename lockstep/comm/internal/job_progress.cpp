#include "lockstep/comm/internal/job_progress.h"

#include <algorithm>
#include <utility>

#include "lockstep/comm/internal/op_counters.h"

namespace lockstep::inline v0 {

void JobProgress::count_moving() noexcept {
  entered_.store(static_cast<int>(moving_.size()), std::memory_order_relaxed);
}

void JobProgress::add(Member& member) {
  const MutexLock lock(mutex_);
  members_.push_back(&member);
}

void JobProgress::remove(Member& member) noexcept {
  MutexLock lock(mutex_);
  if (std::erase(members_, &member) > 0) add_calls(of_removed_, member.counted());
  std::erase(moving_, &member);
  count_moving();
  while (member.users_ > 0) left_.wait(lock);
}

CommunicatorStats JobProgress::stats() {
  const MutexLock lock(mutex_);
  CommunicatorStats all = of_removed_;
  for (const Member* member : members_) add_calls(all, member->counted());
  return all;
}

void JobProgress::enter(Member& member) {
  const MutexLock lock(mutex_);
  ++member.turns_;
  if (std::find(moving_.begin(), moving_.end(), &member) == moving_.end())
    moving_.push_back(&member);
  count_moving();
}

void JobProgress::leave(Member& member) noexcept {
  const MutexLock lock(mutex_);
  std::erase(moving_, &member);
  count_moving();
}

void JobProgress::move_others(const Member& self) noexcept {
  MutexLock lock(mutex_);
  if (std::exchange(moving_others_, true)) return;
  for (size_t i = 0; i < moving_.size(); ++i) {
    Member& member = *moving_[i];
    if (&member == &self) continue;
    ++member.users_;
    const uint64_t turn = member.turns_;
    lock.unlock();
    const bool more = member.move_if_free();
    lock.lock();
    if (--member.users_ == 0) left_.notify_all();
    if (more || member.turns_ != turn) continue;
    // The list may have changed meanwhile; the next turn progresses members that this one leaves
    // out.
    std::erase(moving_, &member);
    count_moving();
    --i;
  }
  moving_others_ = false;
}

void JobProgress::note_other_thread(std::thread::id self) noexcept {
  std::thread::id none;
  if (!thread_.compare_exchange_strong(none, self)) several_threads_.store(true);
}

JobProgress::Look JobProgress::report_wait(WaitState own, bool moved) noexcept {
  if (several_threads_.load()) return {};
  try {
    {
      const MutexLock lock(mutex_);
      for (const Member* member : members_) own.called[member->group()] = member->called();
    }
    const MutexLock lock(deadlocks_mutex_);
    Look look;
    look.wrong = deadlocks_.look(std::move(own), moved);
    look.pause = deadlocks_.pause();
    return look;
  } catch (const std::exception&) {  // out of memory
    return {};
  }
}

}  // namespace lockstep::inline v0
