// The environment that the agent gives a rank: all that torchrun sets, and Lockstep's own. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/env.h"
#include "lockstep/launch/node_plan.h"
#include "lockstep/launch/roles.h"

namespace lockstep::launch {

// What the ranks of one attempt have in common.
struct AttemptPlan {
  NodePlan node;
  bool interface_chosen = false;  // node.interface is the user's choice, not what was found out
  int restart_count = 0;          // of all ranks; where a rank's role has restarts, its own
  int max_restarts = 0;
  bool replaces =
      false;  // ranks that fail are started anew, alone: restart_count is the rank's own
  std::string run_id;
  std::string role;         // where there are no roles
  std::vector<Role> roles;  // of the whole job's ranks
  int secret_fd = -1;
  int board_fd = -1;
  std::optional<int> threads;  // asked for; else `default_threads` unless OMP_NUM_THREADS is set
  int default_threads = 1;
  std::optional<uint64_t> memory_of_rank;  // bytes, where a control group limits it
  int terminal_columns = 0;                // of the agent's own output; 0: it is no terminal
};

using Variables = std::map<std::string, std::string>;

// The variables of a local rank that differ from the agent's. An empty value means: to be removed.
Variables rank_variables(const AttemptPlan& plan, int local_rank, const std::string& error_file,
                         const EnvLookup& agent_env);

// Of rank_variables(): what a rank alone has, and what all ranks of the host have, the former then to be removed.
Variables variables_of_one(const Variables& of_rank);
Variables variables_of_all(const Variables& of_rank);

// NAME=value lines: `base` with `variables` in the place of the same names, and without those that
// are to be removed.
std::vector<std::string> merge_environment(const std::vector<std::string>& base,
                                           const Variables& variables);

// The environment of this process.
std::vector<std::string> current_environment();

}  // namespace lockstep::launch
