// SignalPipe: turns the signals that end or control a job into bytes on a pipe, for a poll(2) loop.
//
// signalfd(2) would need the signals blocked in every thread of the process, and a launch may run
// in a program whose threads (libtorch's) were started long before. A handler is therefore used,
// and with it the only static state of this room: the descriptor that the handler writes to. A
// process can hence have one SignalPipe at a time.
#pragma once

#include <signal.h>

#include <utility>
#include <vector>

#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::launch {

class SignalPipe {
 public:
  // Takes SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2, except those that the process
  // ignores (nohup). Meanwhile, writing to a closed pipe gives EPIPE instead of ending the process,
  // and children can be waited for.
  // Throws: LaunchError when another one exists.
  SignalPipe();
  // Restores the former handlers.
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int fd() const { return pipe_.read.get(); }
  // The signals that arrived since the last call. Does not block.
  std::vector<int> take();

 private:
  void install(int signal, void (*handler)(int), bool when_ignored);

  Pipe pipe_;
  std::vector<std::pair<int, struct sigaction>> former_;
};

}  // namespace lockstep::inline v0::launch
