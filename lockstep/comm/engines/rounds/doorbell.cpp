#include "lockstep/comm/engines/rounds/doorbell.h"

#include "lockstep/core/futex.h"

namespace lockstep::inline v0::rounds {

void Doorbell::wake_sleepers() const {
  for (int r = 0; r < region_.size(); ++r) {
    RankState& state = region_.rank(r);
    if (r == rank_ || state.asleep.load(std::memory_order_seq_cst) == 0) continue;
    state.doorbell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(state.doorbell);
  }
}

void Doorbell::announce() {
  RankState& state = region_.rank(rank_);
  seen_ = state.doorbell.load(std::memory_order_seq_cst);
  state.asleep.store(1, std::memory_order_seq_cst);
  region_.header().sleepers.fetch_add(1, std::memory_order_seq_cst);
  // The caller looks once more by acquire loads. x86 lets no load overtake the addition; ARM does
  // (ldapr, or a load after an LSE atomic), and both sides could miss each other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Doorbell::sleep(std::chrono::nanoseconds longest) {
  futex_wait(region_.rank(rank_).doorbell, seen_, longest);
  withdraw();
}

void Doorbell::withdraw() {
  region_.header().sleepers.fetch_sub(1, std::memory_order_seq_cst);
  region_.rank(rank_).asleep.store(0, std::memory_order_seq_cst);
}

}  // namespace lockstep::inline v0::rounds
