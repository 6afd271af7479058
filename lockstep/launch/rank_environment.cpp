#include "lockstep/launch/rank_environment.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "lockstep/core/memory_settings.h"

namespace lockstep::inline v0::launch {
namespace {

constexpr std::string_view kOfOneRank[] = {"RANK",
                                           "LOCAL_RANK",
                                           "ROLE_NAME",
                                           "ROLE_RANK",
                                           "ROLE_WORLD_SIZE",
                                           "TORCHELASTIC_RESTART_COUNT",
                                           "TORCHELASTIC_MAX_RESTARTS",
                                           "TORCHELASTIC_ERROR_FILE",
                                           "LOCKSTEP_RESTART_COUNT",
                                           "LOCKSTEP_SPARE_DEVICE",
                                           "LOCKSTEP_TTY",
                                           "LOCKSTEP_COLUMNS"};

bool of_one_rank(std::string_view name) {
  return std::find(std::begin(kOfOneRank), std::end(kOfOneRank), name) != std::end(kOfOneRank);
}

}  // namespace

Variables rank_variables(const AttemptPlan& plan, int local_rank, const std::string& error_file,
                         const EnvLookup& agent_env) {
  const NodePlan& node = plan.node;
  const std::string rank = std::to_string(node.first_rank + local_rank),
                    size = std::to_string(node.world_size),
                    node_rank = std::to_string(node.node_rank);
  RolePlace place{.role = 0, .rank = node.first_rank + local_rank};
  Role role{.name = plan.role, .ranks = node.world_size};
  if (!plan.roles.empty()) {
    place = place_in_role(plan.roles, node.first_rank + local_rank);
    role = plan.roles[place.role];
  }
  const std::string restart_count = std::to_string(plan.restart_count);
  const int max_restarts = role.restarts > 0 ? role.restarts : plan.max_restarts;
  Variables variables = {
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"ROLE_RANK", std::to_string(place.rank)},
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", std::to_string(node.local_ranks)},
      {"ROLE_WORLD_SIZE", std::to_string(role.ranks)},
      {"GROUP_RANK", node_rank},
      {"NODE_RANK", node_rank},
      {"GROUP_WORLD_SIZE", std::to_string(node.nodes)},
      {"ROLE_NAME", role.name},
      {"MASTER_ADDR", node.master.host},
      {"MASTER_PORT", std::to_string(node.master.port)},
      {"TORCHELASTIC_RESTART_COUNT", restart_count},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(max_restarts)},
      {"TORCHELASTIC_RUN_ID", plan.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_ERROR_FILE", error_file},
      {"LOCKSTEP_STORE", node.store.to_string()},
      {"LOCKSTEP_SECRET_FD", std::to_string(plan.secret_fd)},
      {"LOCKSTEP_BOARD_FD", std::to_string(plan.board_fd)},
      {"LOCKSTEP_GENERATION", std::to_string(node.generation)},
      {"LOCKSTEP_ROLES", role_ranges(plan.roles)},
      {"LOCKSTEP_RESTART_COUNT", role.restarts > 0 || plan.replaces ? restart_count : ""},
      {"LOCKSTEP_ON_FAILURE", plan.replaces  ? "replace"
                              : plan.shrinks ? "shrink"
                                             : ""},
      {"LOCKSTEP_SPARE_DEVICE", plan.spare_device ? std::to_string(*plan.spare_device) : ""},
      // Variables of an outer launcher must not apply inside.
      {"LOCKSTEP_SECRET", ""},
      {"LOCKSTEP_SECRET_FILE", ""},
      {"LOCKSTEP_SPAWN_CALL", ""},
      {"LOCKSTEP_SPARE_FD", ""},
      {"LOCKSTEP_TTY", ""},
      {"LOCKSTEP_COLUMNS", ""},
  };
  const auto default_to = [&](const char* name, const std::string& value) {
    if (!agent_env(name)) variables[name] = value;
  };
  default_to("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  default_to("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
  variables.merge(memory_variables(agent_env, plan.memory_of_rank));
  default_to("OMP_NUM_THREADS", std::to_string(plan.default_threads));
  if (plan.threads) variables["OMP_NUM_THREADS"] = std::to_string(*plan.threads);
  if (!node.interface.empty()) {
    const auto set = [&](const char* name) {
      if (plan.interface_chosen || !agent_env(name)) variables[name] = node.interface;
    };
    // torch's gloo uses the address that the host's name resolves to, which may not exist.
    set("GLOO_SOCKET_IFNAME");
    set("LOCKSTEP_INTERFACE");
    if (plan.interface_chosen) set("NCCL_SOCKET_IFNAME");
  }
  if (node.first_rank + local_rank == 0 && plan.terminal_columns > 0) {
    variables["LOCKSTEP_TTY"] = "1";
    variables["LOCKSTEP_COLUMNS"] = std::to_string(plan.terminal_columns);
  }
  return variables;
}

Variables variables_of_one(const Variables& of_rank) {
  Variables variables = of_rank;
  std::erase_if(variables, [](const auto& variable) { return !of_one_rank(variable.first); });
  return variables;
}

Variables variables_of_all(const Variables& of_rank) {
  Variables variables = of_rank;
  for (auto& [name, value] : variables) {
    if (of_one_rank(name)) value.clear();
  }
  return variables;
}

std::vector<std::string> merge_environment(const std::vector<std::string>& base,
                                           const Variables& variables) {
  std::vector<std::string> merged;
  for (const std::string& line : base) {
    if (!variables.contains(line.substr(0, line.find('=')))) merged.push_back(line);
  }
  for (const auto& [name, value] : variables) {
    if (!value.empty()) merged.push_back(name + "=" + value);
  }
  return merged;
}

std::vector<std::string> current_environment() {
  std::vector<std::string> lines;
  for (char** line = environ; line != nullptr && *line != nullptr; ++line)
    lines.emplace_back(*line);
  return lines;
}

}  // namespace lockstep::inline v0::launch
