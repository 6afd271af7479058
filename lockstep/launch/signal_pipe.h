// SignalPipe: turns the signals that end or steer a job into bytes on a pipe, for a poll(2) loop.
//
// signalfd(2) would need the signals blocked in every thread of the process, and a launch may run
// in a program whose threads (libtorch's) were started long before. So there is a handler, and with
// it the one piece of static state of this room: the descriptor that the handler writes to. Hence
// one SignalPipe at a time in a process.
#pragma once

#include <signal.h>

#include <utility>
#include <vector>

#include "lockstep/core/subprocess.h"

namespace lockstep::launch {

class SignalPipe {
 public:
  // Takes SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2, except those that the process
  // ignores (nohup). Writing to a closed pipe gives EPIPE instead of ending the process meanwhile,
  // and children can be waited for. Throws LaunchError when another one exists.
  SignalPipe();
  // Restores what was there.
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int fd() const { return pipe_.read.get(); }
  // The signals that came since the last call. Does not block.
  std::vector<int> take();

 private:
  void install(int signal, void (*handler)(int), bool when_ignored);

  Pipe pipe_;
  std::vector<std::pair<int, struct sigaction>> former_;
};

}  // namespace lockstep::launch
