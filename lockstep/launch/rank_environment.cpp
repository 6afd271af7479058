#include "lockstep/launch/rank_environment.h"

#include <unistd.h>

namespace lockstep::launch {

Variables rank_variables(const AttemptPlan& plan, int rank, const std::string& error_file,
                         const EnvLookup& agent_env) {
  const std::string index = std::to_string(rank), size = std::to_string(plan.ranks);
  // One host: the local numbers are the global ones.
  Variables variables = {
      {"RANK", index},
      {"LOCAL_RANK", index},
      {"ROLE_RANK", index},
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", size},
      {"ROLE_WORLD_SIZE", size},
      {"GROUP_RANK", "0"},
      {"NODE_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_NAME", plan.role},
      {"MASTER_ADDR", plan.master.host},
      {"MASTER_PORT", std::to_string(plan.master.port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(plan.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(plan.max_restarts)},
      {"TORCHELASTIC_RUN_ID", plan.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_ERROR_FILE", error_file},
      {"LOCKSTEP_STORE", plan.store.to_string()},
      {"LOCKSTEP_SECRET_FD", std::to_string(plan.secret_fd)},
      {"LOCKSTEP_BOARD_FD", std::to_string(plan.board_fd)},
      // An outer launcher's, if any, do not count inside.
      {"LOCKSTEP_SECRET", ""},
      {"LOCKSTEP_SECRET_FILE", ""},
      {"LOCKSTEP_SPAWN_CALL", ""},
      {"LOCKSTEP_TTY", ""},
      {"LOCKSTEP_COLUMNS", ""},
  };
  const auto default_to = [&](const char* name, const std::string& value) {
    if (!agent_env(name)) variables[name] = value;
  };
  default_to("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  default_to("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
  default_to("THP_MEM_ALLOC_ENABLE", "1");
  default_to("OMP_NUM_THREADS", std::to_string(plan.default_threads));
  if (plan.threads) variables["OMP_NUM_THREADS"] = std::to_string(*plan.threads);
  if (rank == 0 && plan.terminal_columns > 0) {
    variables["LOCKSTEP_TTY"] = "1";
    variables["LOCKSTEP_COLUMNS"] = std::to_string(plan.terminal_columns);
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

}  // namespace lockstep::launch
