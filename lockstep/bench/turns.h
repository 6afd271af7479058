// Turns: several jobs of several processes that measure one after another, again and again. A
// process that is not at its turn sleeps in a read, so it does not disturb.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::bench {

// The parent's ends for one job: a pipe to and one from each of its processes. The processes open
// them through /proc, so that nothing in the file system has a name or is left behind.
class TurnGiver {
 public:
  explicit TurnGiver(int processes);

  // The value of the processes' option --turns.
  std::string address() const;
  // Gives all processes a turn of so many steps, and returns the answer of each, a line.
  // Throws: Timeout, and LaunchError if `job` ends instead.
  std::vector<std::string> give(int steps, Subprocess& job, Deadline deadline);
  // Gives one process alone a turn with that task, and returns its answer.
  // Throws: like give().
  std::string ask(size_t process, const std::string& task, Subprocess& job, Deadline deadline);
  // Returns the next line that a process writes without being asked.
  // Throws: like give().
  std::string hear(size_t process, Subprocess& job, Deadline deadline);
  void end();  // gives no further turn; the processes then end

 private:
  struct Line {
    Pipe go;    // parent -> process
    Pipe back;  // process -> parent
  };
  std::vector<Line> lines_;
};

// A process's ends. take() sleeps until the process's turn and returns its number of steps; 0 when
// there are no more turns, also because the parent has ended.
class TurnTaker {
 public:
  TurnTaker(const std::string& address, int rank);
  int take();
  std::string take_task();  // the same for TurnGiver::ask(); "" when there are no more
  void answer(const std::string& line);

 private:
  UniqueFd go_;
  UniqueFd back_;
};

}  // namespace lockstep::inline v0::bench
