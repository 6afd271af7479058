// SetOnce: a value that the first of several threads sets and all may read, without a lock.
#pragma once

#include <atomic>
#include <type_traits>
#include <utility>

namespace lockstep::inline v0 {

template <typename T>
class SetOnce {
 public:
  // Returns true if this was the first call; otherwise nothing changes.
  bool set(T value) noexcept {
    static_assert(std::is_nothrow_move_assignable_v<T>);
    if (taken_.exchange(true, std::memory_order_acq_rel)) return false;
    value_ = std::move(value);
    there_.store(true, std::memory_order_release);
    return true;
  }

  // Null until it is set; constant from then on.
  const T* get() const noexcept {
    return there_.load(std::memory_order_acquire) ? &value_ : nullptr;
  }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<bool> there_{false};
  T value_{};
};

}  // namespace lockstep::inline v0
