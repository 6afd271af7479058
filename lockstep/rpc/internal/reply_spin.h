// ReplySpin: whether a thread that waits for a reply looks for it for a moment before it sleeps. A
// quick function's reply comes sooner than a sleeping thread is woken; a slow one's does not, and
// then looking takes the processor from others. Not a public header.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace lockstep::inline v0::rpc::internal {

// How long it looks: more than a quick call takes, and not much more than it takes to fall asleep
// and to be woken.
inline constexpr std::chrono::microseconds kReplySpin(40);

// Pure: it is told how each attempt ended, and makes fewer of them while none is successful.
// Thread-safety: one thread at a time.
class ReplySpin {
 public:
  // `processors`: the host's. Without a second one the other end could not run meanwhile; this
  // process may be bound to one of several.
  explicit ReplySpin(int64_t processors) : able_(processors > 1) {}

  // Called for each wait; ended() follows where it is true.
  bool worth_it() {
    if (!able_ || left_out_ > 0) {
      left_out_ = std::max(0, left_out_ - 1);
      return false;
    }
    return true;
  }
  void ended(bool found) {
    pause_ = found ? 0 : std::min(2 * pause_ + 1, kLongest);
    left_out_ = pause_;
  }

 private:
  static constexpr int kLongest = 63;  // waits
  bool able_;
  int pause_ = 0, left_out_ = 0;
};

}  // namespace lockstep::inline v0::rpc::internal
