// The part of `lockstep run` that is about several hosts: from flags to NodesOptions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/run/command.h"
#include "lockstep/cli/run/flags.h"
#include "lockstep/cli/run/mapping.h"
#include "lockstep/launch/agent.h"

namespace lockstep::inline v0::cli {

struct NodesPlan {
  std::optional<int> nproc;                   // ranks on this host, if -H gives them
  std::optional<launch::NodesOptions> nodes;  // nullopt: one host
  std::optional<std::string> devices;         // CUDA_VISIBLE_DEVICES of the ranks, if it is chosen
  std::vector<std::string> notes;
};

// `nproc` is the value of -np; nullopt without it. Pure, except that it reads the files of the job's
// hosts and secret.
// Throws: UsageError, InvalidArgument, one line each.
NodesPlan plan_nodes(const RunFlags& flags, const MachineFacts& machine, const Mapping& mapping,
                     std::optional<int> nproc);

}  // namespace lockstep::inline v0::cli
