// Strays: processes that left their rank's process group (setsid) and have outlived who started them.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace lockstep::launch {

// For a process that reaps its descendants (PR_SET_CHILD_SUBREAPER): it becomes the parent of those whose own has ended.
// Not thread-safe.
class Strays {
 public:
  // `variable`: a line of the environment that the ranks of this job have, "NAME=value", and no other child of this
  // process.
  explicit Strays(std::string variable) : variable_(std::move(variable)) {}

  // Whether any is there now, `ranks` apart, which are children anyway. Reaps those that have ended. Looks through /proc.
  bool look(const std::set<pid_t>& ranks);
  // To those that the last look() has found, and their process groups.
  void signal(int number) const noexcept;

 private:
  std::string variable_;
  std::set<pid_t> found_;
};

}  // namespace lockstep::launch
