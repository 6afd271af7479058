// RemoteAgents: the agents that this one started on other hosts through ssh, their output, and
// their ends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/launch/agent.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/worker.h"

namespace lockstep::launch {

class RemoteAgents {
 public:
  // Starts one for each of options.nodes->remotes; `endpoints` is where they may find this one.
  // Throws LaunchError.
  RemoteAgents(const LaunchOptions& options, const std::vector<HostPort>& endpoints, Console& out,
               Console& err);

  // What an ssh that has ended was.
  struct End {
    int number = 0;
    std::string what;  // "hostB: ssh exited with code 255"
  };
  void watch(PollSet& polls);
  // Those since the last call.
  std::vector<End> take_ends();

  // Ends their stdin, which tells those that still run to stop.
  void let_go();
  // All have ended, and all that they wrote was passed on.
  bool all_ended() const;

 private:
  struct Remote {
    RemoteHost host;
    UniqueFd input;
    std::string order;  // what was not yet taken of it
    std::unique_ptr<OutputStream> out, err;
    std::unique_ptr<Subprocess> process;
    bool ended = false;
  };
  static void give_order(Remote& remote);

  std::vector<Remote> remotes_;
};

// The body of a remote agent: reads its order from descriptor `input`, and takes part in the job
// until its end, or until `input` ends. Returns the exit code. Throws InvalidArgument, LaunchError.
int run_remote_agent(int input);

}  // namespace lockstep::launch
