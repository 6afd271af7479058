// Vector clocks: what has come before what, on streams that run beside each other. Not a public
// header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::inline v0::testing::fake {

// An operation: the `tick`-th of a stream, counted from 1.
struct Stamp {
  int stream = 0;
  uint64_t tick = 0;
};

// For each stream, how many of its operations are known to be over by then.
class VectorClock {
 public:
  uint64_t of(int stream) const {
    const auto i = static_cast<size_t>(stream);
    return i < ticks_.size() ? ticks_[i] : 0;
  }
  bool covers(const Stamp& stamp) const { return of(stamp.stream) >= stamp.tick; }

  void advance(const Stamp& stamp) {
    const auto i = static_cast<size_t>(stamp.stream);
    if (ticks_.size() <= i) ticks_.resize(i + 1);
    ticks_[i] = std::max(ticks_[i], stamp.tick);
  }
  void join(const VectorClock& other) {
    if (ticks_.size() < other.ticks_.size()) ticks_.resize(other.ticks_.size());
    for (size_t i = 0; i < other.ticks_.size(); ++i)
      ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
  }

 private:
  std::vector<uint64_t> ticks_;  // by stream
};

// When an operation runs: its stamp, and what is over before it, itself among that.
struct Moment {
  Stamp stamp;
  VectorClock clock;
};

}  // namespace lockstep::inline v0::testing::fake
