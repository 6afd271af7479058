// Subprocess: a child process by fork and exec, safe in a parent with threads and libtorch: between
// fork and exec the child makes only async-signal-safe calls. By fork alone where the caller knows
// that the process survives it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/export.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0 {

// The program or function that a child executes, and the conditions under which it does.
struct SubprocessOptions {
  std::vector<std::string> command;  // argv, at least argv[0]
  std::string program;  // the file to execute; "": command[0], looked up on PATH like in a shell
  // Instead of a program: what the child runs, by fork alone, for libraries that take long to load.
  // It returns the exit code. Descriptors, signals and environment are as after exec; memory is a
  // copy of this process's, and no exit handler runs at the end. Only while no other thread
  // of this process can hold a lock that the child wants (fork_lock.h): libtorch starts threads.
  std::function<int()> body = {};
  // The whole environment as NAME=value; nullopt: this process's.
  std::optional<std::vector<std::string>> env;
  // Descriptors that become the child's 0, 1 and 2; -1: inherited. The caller keeps them.
  int stdin_fd = -1;
  int stdout_fd = -1;  // likewise
  int stderr_fd = -1;  // likewise
  // Further descriptors (3 and up) that stay open in the child, with the same numbers.
  std::vector<int> inherit;
  std::vector<int> cpus;  // processors that the child may use; empty: as this process
  // A session and process group of its own: a terminal's Ctrl-C does not reach it, and
  // signal_group() reaches its children.
  bool own_session = true;
  // Sends SIGKILL to the child when the thread that started it ends, hence also when this process
  // dies in any way. The child's own children are not covered.
  bool die_with_parent = true;
};

// How a process ended.
struct ExitStatus {
  int exit_code = 0;                                         // valid when signal == 0
  int signal = 0;                                            // 0: it exited
  bool ok() const { return signal == 0 && exit_code == 0; }  // it exited with 0
};

// The file of the command `name`: itself if it has a slash, otherwise the first executable on PATH.
// Throws: LaunchError that says what was looked for and where.
LOCKSTEP_API std::string find_program(const std::string& name);

// A pipe, both ends close-on-exec.
struct Pipe {
  UniqueFd read;
  UniqueFd write;
};
LOCKSTEP_API Pipe make_pipe();  // throws SystemError

// Owns a child. The destructor kills a running child (its group, if it has its own) and reaps it.
//
// The system may reuse the number of a reaped child for another process, and that of its group too
// once the group is empty. A child with a group of its own therefore stays a zombie after its end
// until group_alive() finds no process of the group, or until the destructor: signals never reach
// another process.
// Thread-safety: one thread at a time.
class LOCKSTEP_API Subprocess {
 public:
  // Starts it. The child has default signal handlers and no blocked signal; ignored signals stay
  // ignored.
  // Throws: LaunchError with the reason, also when exec itself fails: the child never runs
  // half-started; SystemError where the system has no room for it now.
  explicit Subprocess(const SubprocessOptions& options);
  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;
  ~Subprocess();

  pid_t pid() const { return pid_; }  // of the child
  // Becomes readable when the child ends; -1 where the kernel has no pidfd_open (before Linux 5.3).
  int exit_fd() const { return pidfd_.get(); }

  // The child's exit status, if it has ended.
  std::optional<ExitStatus> poll();
  // Waits for its end.
  // Throws: Timeout that names the command.
  ExitStatus wait(Deadline deadline);

  // Signals the child alone; does nothing once poll() or wait() has returned its end.
  void signal(int number) noexcept;
  // Signals its process group (the child alone without one); also after the child's own end, until
  // group_alive() has returned false.
  void signal_group(int number) noexcept;
  // Whether any process of its group is alive. Reaps those of the group that have become this
  // process's children. Once the child has ended this reads /proc, as long as one lives.
  bool group_alive();

 private:
  void reap() noexcept;

  std::string name_;
  bool own_session_ = false;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<ExitStatus> status_;
  bool reaped_ = false;  // its number may be reused
};

}  // namespace lockstep::inline v0
