// Deadline: the moment at which a wait gives up. Every wait in Lockstep has one.
#pragma once

#include <chrono>
#include <limits>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// A point on the steady clock, with the duration from which it was made, so that an error can print
// both. A value type; safe to copy and to share between threads.
class LOCKSTEP_API Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::nanoseconds;

  // `timeout` from now. Negative lengths count as zero.
  static Deadline after(Duration timeout) {
    return Deadline(Clock::now(), timeout < Duration::zero() ? Duration::zero() : timeout);
  }
  // Durations that do not fit, infinity included, become the longest one.
  static Deadline seconds(double seconds) {
    if (seconds >= 9e9) return after(Duration::max());
    return after(std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(seconds > 0 ? seconds : 0)));
  }

  bool expired() const { return remaining() == Duration::zero(); }  // no time is left
  // Never negative.
  Duration remaining() const {
    const auto elapsed = Clock::now() - start_;
    return elapsed >= timeout_ ? Duration::zero() : timeout_ - elapsed;
  }
  // For poll(2): milliseconds left, rounded up, at most `cap`.
  int poll_ms(int cap = std::numeric_limits<int>::max()) const {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(remaining()).count();
    return ms < cap ? static_cast<int>(ms) : cap;
  }
  // The moment itself, for condition variables; clamped to the clock's range.
  Clock::time_point time() const {
    return timeout_ > Clock::time_point::max() - start_ ? Clock::time_point::max()
                                                        : start_ + timeout_;
  }
  // The duration from which the deadline was made.
  Duration timeout() const { return timeout_; }
  // Timeout().
  double timeout_seconds() const { return std::chrono::duration<double>(timeout_).count(); }
  // Since the deadline was made.
  double elapsed_seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

 private:
  Deadline(Clock::time_point start, Duration timeout) : start_(start), timeout_(timeout) {}

  Clock::time_point start_;
  Duration timeout_;
};

}  // namespace lockstep::inline v0
