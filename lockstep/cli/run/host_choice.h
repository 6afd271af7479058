// The hosts that a job is put on: -H or a host file, narrowed by deepspeed's --include, --exclude and
// --num_nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/run/flags.h"
#include "lockstep/launch/host_list.h"

namespace lockstep::inline v0::cli {

struct HostChoice {
  std::vector<launch::HostSlots> hosts;  // empty: none are named
  std::string source;                    // "-H", "--hostfile NAME": for errors
  // CUDA_VISIBLE_DEVICES of the ranks, where single GPUs are named. It is the same on all hosts.
  std::optional<std::string> devices;
};

// `per_host` ranks on each host, instead of its slots. Pure, except that it reads the host file.
// Throws: UsageError, InvalidArgument, one line each.
HostChoice choose_hosts(const RunFlags& flags, std::optional<int> per_host, bool oversubscribe);

}  // namespace lockstep::inline v0::cli
