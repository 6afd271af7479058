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
  explicit Sentinel(int ranks);
  // The process ends without doing anything.
  ~Sentinel();
  Sentinel(const Sentinel&) = delete;
  Sentinel& operator=(const Sentinel&) = delete;

  // From now on the process group is killed when this process ends in whatever way, but for the
  // destructor.
  void watch(int rank, pid_t group) noexcept;
  // The rank's group has no process any more: its number may become another's.
  void forget(int rank) noexcept;

 private:
  size_t count_;
  pid_t* groups_;  // shared with the child; 0: none
  UniqueFd lifeline_;
  pid_t child_ = -1;
};

}  // namespace lockstep::launch
