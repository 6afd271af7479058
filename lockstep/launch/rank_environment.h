// The environment that the agent gives a rank: all variables that torchrun sets, and Lockstep's
// own. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/core/export.h"
#include "lockstep/launch/node_plan.h"
#include "lockstep/launch/roles.h"

namespace lockstep::inline v0::launch {

// The common part of the ranks of one attempt.
struct AttemptPlan {
  NodePlan node;
  bool interface_chosen = false;  // node.interface is the user's choice and was not detected
  // The restarts of all ranks. Where this rank is restarted alone, its own on this host, together
  // with the moves of its place from host to host.
  int restart_count = 0;
  int max_restarts = 0;
  // Failed ranks are replaced alone: restart_count is the rank's own.
  bool replaces = false;
  bool shrinks = false;  // the others go on without failed ranks
  std::string run_id;
  std::string role;         // where there are no roles
  std::vector<Role> roles;  // of the whole job's ranks
  int secret_fd = -1;
  int board_fd = -1;
  // Requested; otherwise `default_threads` unless OMP_NUM_THREADS is set.
  std::optional<int> threads;
  int default_threads = 1;
  std::optional<uint64_t> memory_of_rank;  // bytes, where a control group limits it
  std::optional<int> spare_device;         // of this rank, whose own has failed (FailedDevices)
  int terminal_columns = 0;                // of the agent's own output; 0: not a terminal
};

using Variables = std::map<std::string, std::string>;

// The variables of a local rank that differ from the agent's. An empty value removes the variable.
Variables rank_variables(const AttemptPlan& plan, int local_rank, const std::string& error_file,
                         const EnvLookup& agent_env);

// Two subsets of rank_variables(): the rank's own variables, and those common to all ranks of the
// host, in which the former are removed.
Variables variables_of_one(const Variables& of_rank);
Variables variables_of_all(const Variables& of_rank);

// NAME=value lines: `base` with `variables` in place of the same names, and without the removed
// ones.
LOCKSTEP_API std::vector<std::string> merge_environment(const std::vector<std::string>& base,
                                                        const Variables& variables);

// The environment of this process.
LOCKSTEP_API std::vector<std::string> current_environment();

}  // namespace lockstep::inline v0::launch
