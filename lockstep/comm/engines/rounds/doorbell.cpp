#include "lockstep/comm/engines/rounds/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace lockstep::inline v0::rounds {
namespace {

// Shared between processes, therefore without FUTEX_PRIVATE_FLAG.
long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  return ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout,
                   nullptr, 0);
}

}  // namespace

void Doorbell::wake_sleepers() const {
  for (int r = 0; r < region_.size(); ++r) {
    RankState& state = region_.rank(r);
    if (r == rank_ || state.asleep.load(std::memory_order_seq_cst) == 0) continue;
    state.doorbell.fetch_add(1, std::memory_order_seq_cst);
    futex(state.doorbell, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void Doorbell::announce() {
  RankState& state = region_.rank(rank_);
  seen_ = state.doorbell.load(std::memory_order_seq_cst);
  state.asleep.store(1, std::memory_order_seq_cst);
  region_.header().sleepers.fetch_add(1, std::memory_order_seq_cst);
}

void Doorbell::sleep(std::chrono::nanoseconds longest) {
  longest = std::max(longest, std::chrono::nanoseconds(0));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec timeout{seconds.count(), (longest - seconds).count()};
  futex(region_.rank(rank_).doorbell, FUTEX_WAIT, seen_, &timeout);
  withdraw();
}

void Doorbell::withdraw() {
  region_.header().sleepers.fetch_sub(1, std::memory_order_seq_cst);
  region_.rank(rank_).asleep.store(0, std::memory_order_seq_cst);
}

}  // namespace lockstep::inline v0::rounds
