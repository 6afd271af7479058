// Strays: processes that left their rank's process group (setsid) and have outlived their parent.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace lockstep::inline v0::launch {

// For a process that reaps its descendants (PR_SET_CHILD_SUBREAPER): it becomes the parent of those
// whose own has ended.
// Thread-safety: one thread at a time.
class Strays {
 public:
  // `variable`: a line of the environment, "NAME=value", that the ranks of this job have, and no
  // other child of this process.
  explicit Strays(std::string variable) : variable_(std::move(variable)) {}

  // Whether there are any now, except `ranks`, which are children anyway. Reaps those that have
  // ended. Searches /proc.
  bool look(const std::set<pid_t>& ranks);
  // Signals those that the last look() has found, and their process groups.
  void signal(int number) const noexcept;

 private:
  std::string variable_;
  std::set<pid_t> found_;
};

}  // namespace lockstep::inline v0::launch
