// Turns: several jobs of several processes that measure one after another, again and again. A
// process that is not at its turn sleeps in a read, so it does not disturb.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::bench {

// What the parent holds of one job: a pipe to and one from each of its processes. They open them
// through /proc, so nothing of theirs has a name in the file system or is left behind.
class TurnGiver {
 public:
  explicit TurnGiver(int processes);

  // For the processes' --turns.
  std::string address() const;
  // One turn of so many steps; returns each process's answer, a line.
  // Throws: Timeout, and LaunchError if `job` ends instead.
  std::vector<std::string> give(int steps, Subprocess& job, Deadline deadline);
  // A turn of one process alone, whatever it is to do; returns its answer.
  // Throws: like give().
  std::string ask(size_t process, const std::string& task, Subprocess& job, Deadline deadline);
  // The next line of a process that speaks unasked.
  // Throws: like give().
  std::string hear(size_t process, Subprocess& job, Deadline deadline);
  void end();  // no further turn: the processes leave

 private:
  struct Line {
    Pipe go;    // parent -> process
    Pipe back;  // process -> parent
  };
  std::vector<Line> lines_;
};

// What a process has: take() sleeps until its turn and returns its number of steps; 0 when there
// are no more, also because the parent is gone.
class TurnTaker {
 public:
  TurnTaker(const std::string& address, int rank);
  int take();
  std::string take_task();  // the same for who is asked by ask(): ""
  void answer(const std::string& line);

 private:
  UniqueFd go_;
  UniqueFd back_;
};

}  // namespace lockstep::bench
