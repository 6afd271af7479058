// The part of `lockstep run` that is about several hosts: from flags to NodesOptions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/run/command.h"
#include "lockstep/cli/run/flags.h"
#include "lockstep/launch/agent.h"

namespace lockstep::inline v0::cli {

struct NodesPlan {
  std::optional<int> nproc;                   // ranks on this host, if -H gives them
  std::optional<launch::NodesOptions> nodes;  // nullopt: one host
  std::vector<std::string> notes;
};

// `nproc` is the value of -np; nullopt without it. Pure, except that it reads the file of the job's
// secret.
// Throws: UsageError, InvalidArgument, one line each.
NodesPlan plan_nodes(const RunFlags& flags, const MachineFacts& machine, std::optional<int> nproc);

}  // namespace lockstep::inline v0::cli
