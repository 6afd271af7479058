#include "lockstep/comm/job_progress.h"

#include <algorithm>

namespace lockstep {

void JobProgress::add(Member& member) {
  const MutexLock lock(mutex_);
  members_.push_back(&member);
}

void JobProgress::remove(Member& member) noexcept {
  const MutexLock lock(mutex_);
  std::erase(members_, &member);
  std::erase(moving_, &member);
  entered_.store(static_cast<int>(moving_.size()), std::memory_order_relaxed);
}

void JobProgress::enter(Member& member) {
  const MutexLock lock(mutex_);
  moving_.push_back(&member);
  entered_.store(static_cast<int>(moving_.size()), std::memory_order_relaxed);
}

void JobProgress::leave(Member& member) noexcept {
  const MutexLock lock(mutex_);
  std::erase(moving_, &member);
  entered_.store(static_cast<int>(moving_.size()), std::memory_order_relaxed);
}

void JobProgress::move_others(const Member& self) noexcept {
  if (!mutex_.try_lock()) return;
  for (Member* member : moving_) {
    if (member != &self) member->move_if_free();
  }
  mutex_.unlock();
}

void JobProgress::note_other_thread(std::thread::id self) noexcept {
  std::thread::id nobody;
  if (!thread_.compare_exchange_strong(nobody, self)) several_threads_.store(true);
}

std::string JobProgress::stand(Standing own, bool moved) noexcept {
  if (several_threads_.load()) return "";
  try {
    {
      const MutexLock lock(mutex_);
      for (const Member* member : members_) own.called[member->group()] = member->called();
    }
    const MutexLock lock(standstill_mutex_);
    return standstill_.look(std::move(own), moved);
  } catch (const std::exception&) {  // no memory
    return "";
  }
}

}  // namespace lockstep
