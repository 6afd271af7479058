// What the launching agent tells an agent that it starts on another host, and how it starts it.
// Pure.
//
// The order is one line of JSON on the remote agent's stdin, with the job's secret in it: neither a
// command line nor an environment is as private. Its stdin stays open as long as the launching
// agent lives.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/launch/agent.h"

namespace lockstep::launch {

// The hidden argument of `lockstep run` that makes it such an agent.
inline constexpr const char* kRemoteAgentFlag = "--agent-of-another-host";

struct RemoteOrder {
  std::string directory;                   // to work in
  std::map<std::string, std::string> env;  // to be added to the remote host's own
  LaunchOptions options;                   // with nodes
};

// The order for `remote`, one of options.nodes->remotes. `endpoints`: where the launching agent may
// be reached; `environment`: NAME=value lines, from which LOCKSTEP_* and what nodes->forward names
// are taken.
RemoteOrder make_order(const LaunchOptions& options, const RemoteHost& remote,
                       const std::vector<HostPort>& endpoints, const std::string& directory,
                       const std::vector<std::string>& environment);

// One line, without its end.
std::string encode(const RemoteOrder& order);
// Throws InvalidArgument.
RemoteOrder decode_remote_order(std::string_view line);

// The command that runs `program` (this lockstep, which is expected under the same path) on `host`:
// the words of `ssh`, or OpenSSH's, then the host, then one word for a shell there.
std::vector<std::string> ssh_command(const std::vector<std::string>& ssh, const std::string& host,
                                     const std::string& program);

}  // namespace lockstep::launch
