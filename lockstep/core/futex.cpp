#include "lockstep/core/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace lockstep::inline v0 {
namespace {

// Shared between processes, therefore without FUTEX_PRIVATE_FLAG.
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds longest) {
  longest = std::max(longest, std::chrono::nanoseconds(0));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec timeout{seconds.count(), (longest - seconds).count()};
  futex(word, FUTEX_WAIT, seen, &timeout);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace lockstep::inline v0
