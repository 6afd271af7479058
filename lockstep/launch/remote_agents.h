// RemoteAgents: the agents that this one started on other hosts through ssh, their output, and
// their ends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/launch/console.h"
#include "lockstep/launch/launch_options.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/worker.h"

namespace lockstep::inline v0::launch {

class RemoteAgents {
 public:
  // Starts one agent for each of options.nodes->remotes; `endpoints` are this agent's.
  // Throws: LaunchError.
  RemoteAgents(const LaunchOptions& options, const std::vector<HostPort>& endpoints, Console& out,
               Console& err);

  // The end of an ssh process.
  struct End {
    int number = 0;
    std::string what;  // "hostB: ssh exited with code 255"
  };
  void watch(PollSet& polls);
  // The ends since the last call.
  std::vector<End> take_ends();

  // Closes their stdin, which tells those that still run to stop.
  void let_go();
  // Whether all have ended and all their output was passed on.
  bool all_ended() const;

 private:
  struct Remote {
    RemoteHost host;
    UniqueFd input;
    std::string order;  // the rest to be written
    std::unique_ptr<OutputStream> out, err;
    std::unique_ptr<Subprocess> process;
    bool ended = false;
  };
  static void give_order(Remote& remote);

  std::vector<Remote> remotes_;
};

// The body of a remote agent: reads its order from descriptor `input`, and takes part in the job
// until its end, or until end of file on `input`. Returns the exit code.
// Throws: InvalidArgument, LaunchError.
int run_remote_agent(int input);

}  // namespace lockstep::inline v0::launch
