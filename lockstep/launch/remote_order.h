// The order of the launching agent to an agent that it starts on another host, and the command that
// starts it. Pure.
//
// The order is one line of JSON on the remote agent's stdin and contains the job's secret: neither
// a command line nor an environment is as private. Its stdin stays open as long as the launching
// agent lives.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/launch/launch_options.h"

namespace lockstep::inline v0::launch {

// The hidden argument of `lockstep run` that makes it such an agent.
inline constexpr const char* kRemoteAgentFlag = "--agent-of-another-host";

struct RemoteOrder {
  std::string directory;                   // working directory
  std::map<std::string, std::string> env;  // added to the remote host's own
  LaunchOptions options;                   // with nodes
};

// The order for `remote`, one of options.nodes->remotes. `endpoints`: those of the launching agent;
// `environment`: NAME=value lines, from which LOCKSTEP_* and the variables in nodes->forward are
// taken.
RemoteOrder make_order(const LaunchOptions& options, const RemoteHost& remote,
                       const std::vector<HostPort>& endpoints, const std::string& directory,
                       const std::vector<std::string>& environment);

// One line, without its end of line.
std::string encode(const RemoteOrder& order);
// Throws: InvalidArgument.
RemoteOrder decode_remote_order(std::string_view line);

// The command that runs `program` (this lockstep, expected under the same path) on `host`: the
// words of `ssh`, or OpenSSH's, then the host, then one word for a shell there.
std::vector<std::string> ssh_command(const std::vector<std::string>& ssh, const std::string& host,
                                     const std::string& program);

}  // namespace lockstep::inline v0::launch
