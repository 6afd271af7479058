// Sentinel: a small process that ends the ranks and their children when the agent cannot do so
// itself: when the agent is killed (the kernel ends the ranks then, but not their children), and
// when it is stopped for so long that the agents of other hosts continue without it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>

#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::launch {

// Thread-safety: one thread at a time.
class Sentinel {
 public:
  // Forks; the child makes async-signal-safe calls only, holds no descriptor of this process, and
  // waits. `sleep_counts`: time passes for hold_until() while the machine sleeps.
  // Throws: SystemError.
  explicit Sentinel(int places, bool sleep_counts = true);
  // Ends the process without further effects.
  ~Sentinel();
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;

  // From now on the process group is killed when this process ends in any way other than the
  // destructor. `place`: below the number of places; a rank's own, or a spare's.
  void watch(int place, pid_t group) noexcept;
  // The group of this place has no process any more, and its number may be reused.
  void forget(int place) noexcept;
  // The process groups are killed at `time`, unless this is called again before. nullopt, the
  // initial state: they are not killed for that reason. Returns false if that has happened, now or
  // before; it cannot be undone. Where they were not held before, a `time` in the past has no
  // effect.
  bool hold_until(std::optional<std::chrono::steady_clock::time_point> time) noexcept;

  struct Watched;  // shared by both processes

 private:
  Watched* watched_;
  UniqueFd lifeline_;
  pid_t child_ = -1;
};

}  // namespace lockstep::inline v0::launch
