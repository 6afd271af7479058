// Sentinel: a small process that ends the ranks and what they have started when the agent cannot do
// so itself: when it is killed (the kernel ends the ranks then, but not their children), and when it
// stands still for so long that the agents of other hosts go on without it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>

#include "lockstep/core/unique_fd.h"

namespace lockstep::launch {

// Not thread-safe.
class Sentinel {
 public:
  // Forks; the child makes async-signal-safe calls only, holds no descriptor of this process, and
  // waits. `sleep_counts`: time passes for hold_until() while the machine sleeps. Throws SystemError.
  explicit Sentinel(int places, bool sleep_counts = true);
  // The process ends without doing anything.
  ~Sentinel();
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;

  // From now on the process group is killed when this process ends in whatever way, but for the
  // destructor.
  // `place`: below the number of them; a rank's own, or a spare's.
  void watch(int place, pid_t group) noexcept;
  // The group of this place has no process any more: its number may become another's.
  void forget(int place) noexcept;
  // The process groups are killed at `time` (nullopt, and at first: not for that reason), unless
  // this is called again before. False: that has happened, now or before, and cannot be undone. Where they were not held
  // before, a `time` that is past changes nothing.
  bool hold_until(std::optional<std::chrono::steady_clock::time_point> time) noexcept;

  struct Watched;  // what both processes know

 private:
  Watched* watched_;
  UniqueFd lifeline_;
  pid_t child_ = -1;
};

}  // namespace lockstep::launch
