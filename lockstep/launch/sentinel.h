// Sentinel: a small process that ends what the ranks have started when the agent is killed and
// cannot do so itself. (The ranks are ended by the kernel; their own children are not.)
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "lockstep/core/unique_fd.h"

namespace lockstep::launch {

// Not thread-safe.
class Sentinel {
 public:
  // Forks; the child makes async-signal-safe calls only, holds no descriptor of this process, and
  // waits. Throws SystemError.
  explicit Sentinel(int places);
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

 private:
  size_t count_;
  pid_t* groups_;  // shared with the child; 0: none
  UniqueFd lifeline_;
  pid_t child_ = -1;
};

}  // namespace lockstep::launch
