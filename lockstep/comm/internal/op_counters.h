// OpCounters: the calls of one communicator, which other threads may read while it is used. Not a
// public header.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0 {

// Adds the calls of `more`.
inline void add_calls(CommunicatorStats& sum, const CommunicatorStats& more) {
  sum.collectives += more.collectives;
  for (size_t op = 0; op < sum.by_op.size(); ++op) {
    sum.by_op[op].calls += more.by_op[op].calls;
    sum.by_op[op].bytes += more.by_op[op].bytes;
  }
}

// Thread-safety: count() by one thread at a time, read() by any.
class OpCounters {
 public:
  void count(Op op, uint64_t bytes) noexcept {
    if (op != Op::kSend && op != Op::kRecv) add(collectives_, 1);
    Calls& calls = by_op_[static_cast<size_t>(op)];
    add(calls.calls, 1);
    add(calls.bytes, bytes);
  }
  CommunicatorStats read() const noexcept {
    CommunicatorStats stats{.collectives = collectives_.load(std::memory_order_relaxed)};
    for (size_t op = 0; op < by_op_.size(); ++op)
      stats.by_op[op] = {.calls = by_op_[op].calls.load(std::memory_order_relaxed),
                         .bytes = by_op_[op].bytes.load(std::memory_order_relaxed)};
    return stats;
  }

 private:
  using Counter = std::atomic<uint64_t>;
  struct Calls {
    Counter calls{0}, bytes{0};
  };
  // There is one writer, so that the processor's lock, which small calls would feel, is not needed.
  static void add(Counter& counter, uint64_t amount) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }

  Counter collectives_{0};
  std::array<Calls, kOpCount> by_op_{};
};

}  // namespace lockstep::inline v0
