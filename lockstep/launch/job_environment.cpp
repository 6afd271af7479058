#include "lockstep/launch/job_environment.h"

#include <algorithm>
#include <limits>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/launch/host_list.h"
#include "lockstep/launch/mpi_family.h"
#include "lockstep/launch/spare_wait.h"

namespace lockstep::inline v0::launch {
namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();

std::optional<int> read_int(const EnvLookup& env, std::string_view name, int min) {
  const auto value = env_int(env, name, min, kMaxInt);
  if (!value) return std::nullopt;
  return static_cast<int>(*value);
}

int need_int(const EnvLookup& env, std::string_view name, int min, std::string_view because) {
  const auto value = read_int(env, name, min);
  if (!value) {
    throw InvalidArgument(
        "environment variable " + std::string(name) + " is missing, although " +
        std::string(because) +
        " is set; start the program with lockstep run, torchrun, mpirun or srun, or unset both");
  }
  return *value;
}

void check_below(std::string_view name, int value, std::string_view limit_name, int limit) {
  if (value < limit) return;
  throw InvalidArgument(std::string(name) + "=" + std::to_string(value) + " contradicts " +
                        std::string(limit_name) + "=" + std::to_string(limit) +
                        ": ranks count from 0");
}

std::optional<HostPort> read_master(const EnvLookup& env) {
  const auto host = env("MASTER_ADDR");
  const auto port = env_int(env, "MASTER_PORT", 0, 65535);
  if (!host || !port) return std::nullopt;
  return HostPort{*host, static_cast<uint16_t>(*port)};
}

int read_node_rank(const EnvLookup& env) {
  const auto group = read_int(env, "GROUP_RANK", 0);
  const auto node = read_int(env, "NODE_RANK", 0);
  if (group && node && *group != *node) {
    throw InvalidArgument("NODE_RANK=" + std::to_string(*node) + " contradicts GROUP_RANK=" +
                          std::to_string(*group) + ": both are the number of this host");
  }
  return group.value_or(node.value_or(0));
}

// Reads RANK, WORLD_SIZE and the related variables, as Lockstep's agent and torchrun set them.
// Programs started by hand set only RANK and WORLD_SIZE; LOCAL_RANK then counts as 0 of 1, and the
// communicator determines which ranks share a host.
JobEnvironment read_ranks(const EnvLookup& env, Launcher launcher, std::string_view because) {
  JobEnvironment job;
  job.launcher = launcher;
  job.world_size = need_int(env, "WORLD_SIZE", 1, because == "WORLD_SIZE" ? "RANK" : because);
  job.rank = need_int(env, "RANK", 0, because == "RANK" ? "WORLD_SIZE" : because);
  check_below("RANK", job.rank, "WORLD_SIZE", job.world_size);
  const auto local_rank = read_int(env, "LOCAL_RANK", 0);
  const auto local_world_size = read_int(env, "LOCAL_WORLD_SIZE", 1);
  job.local_rank = local_rank.value_or(0);
  job.local_world_size = local_world_size.value_or(job.local_rank + 1);
  check_below("LOCAL_RANK", job.local_rank, "LOCAL_WORLD_SIZE", job.local_world_size);
  if (job.local_world_size > job.world_size) {
    throw InvalidArgument((local_world_size
                               ? "LOCAL_WORLD_SIZE=" + std::to_string(job.local_world_size)
                               : "LOCAL_RANK=" + std::to_string(job.local_rank)) +
                          " contradicts WORLD_SIZE=" + std::to_string(job.world_size));
  }
  job.node_rank = read_node_rank(env);
  job.restart_count = read_int(env, "TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
  job.master = read_master(env);
  return job;
}

JobEnvironment read_lockstep(const EnvLookup& env, const std::string& store) {
  JobEnvironment job = read_ranks(env, Launcher::kLockstep, "LOCKSTEP_STORE");
  job.store = parse_host_port(store);
  job.own_restarts = read_int(env, "LOCKSTEP_RESTART_COUNT", 0);
  job.generation = read_int(env, "LOCKSTEP_GENERATION", 0).value_or(0);
  const auto on_failure = env("LOCKSTEP_ON_FAILURE");
  job.replaces = on_failure == "replace";
  job.shrinks = on_failure == "shrink";
  return job;
}

JobEnvironment read_torchrun(const EnvLookup& env) {
  JobEnvironment job = read_ranks(env, Launcher::kTorchrun, env("RANK") ? "RANK" : "WORLD_SIZE");
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (!env(name)) {
      throw InvalidArgument(
          "environment variable " + std::string(name) +
          " is missing, although RANK and WORLD_SIZE are set; it tells where rank 0 listens, "
          "for example MASTER_ADDR=127.0.0.1 MASTER_PORT=29500");
    }
  }
  return job;
}

// mpirun does not say which host a rank is on (OMPI_COMM_WORLD_NODE_RANK is the rank within the
// host, over all jobs). The number here assumes the default placement, by slot.
JobEnvironment read_mpirun(const EnvLookup& env, Launcher launcher, const MpiLauncher& names) {
  JobEnvironment job;
  job.launcher = launcher;
  job.rank = need_int(env, names.rank, 0, names.size);
  job.world_size = need_int(env, names.size, 1, names.rank);
  job.local_rank = need_int(env, names.local_rank, 0, names.rank);
  job.local_world_size = need_int(env, names.local_size, 1, names.rank);
  check_below(names.rank, job.rank, names.size, job.world_size);
  check_below(names.local_rank, job.local_rank, names.local_size, job.local_world_size);
  check_below(names.local_size, job.local_world_size - 1, names.size, job.world_size);
  job.node_rank = (job.rank - std::min(job.rank, job.local_rank)) / job.local_world_size;
  job.master = read_master(env);
  return job;
}

// The number of tasks on node `node` according to SLURM_STEP_TASKS_PER_NODE, e.g. "4(x2),3": 4, 4,
// 3.
int slurm_tasks_on_node(const std::string& text, int node) {
  std::string_view rest = text;
  int first = 0;
  while (!rest.empty()) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    int64_t nodes = 1;
    if (const auto open = item.find("(x"); open != std::string_view::npos && item.ends_with(')')) {
      nodes = parse_int(item.substr(open + 2, item.size() - open - 3), 1, kMaxInt).value_or(0);
      item = item.substr(0, open);
    }
    const auto tasks = parse_int(item, 1, kMaxInt);
    if (!tasks || nodes == 0) break;
    if (node < first + nodes) return static_cast<int>(*tasks);
    first += static_cast<int>(nodes);
  }
  throw InvalidArgument("SLURM_STEP_TASKS_PER_NODE=" + text + " does not give the tasks of node " +
                        std::to_string(node) + " (SLURM_NODEID)");
}

// Rank 0's address: MASTER_ADDR and MASTER_PORT where the user set them; otherwise the step's first
// node, and a port below the ephemeral range that every task derives from the numbers of the job
// and its step.
std::optional<HostPort> slurm_master(const EnvLookup& env) {
  HostPort master;
  if (const auto host = env("MASTER_ADDR")) {
    master.host = *host;
  } else if (const auto nodes = env("SLURM_STEP_NODELIST")) {
    master.host = expand_slurm_nodes(*nodes).front();
  } else {
    return std::nullopt;
  }
  const auto job = env_int(env, "SLURM_JOB_ID", 0), step = env_int(env, "SLURM_STEP_ID", 0);
  if (const auto port = env_int(env, "MASTER_PORT", 0, 65535)) {
    master.port = static_cast<uint16_t>(*port);
  } else if (job && step) {
    const uint64_t mixed = static_cast<uint64_t>(*job) * 7919 + static_cast<uint64_t>(*step);
    master.port = static_cast<uint16_t>(15000 + mixed % 15000);
  } else {
    return std::nullopt;
  }
  return master;
}

JobEnvironment read_slurm(const EnvLookup& env) {
  JobEnvironment job;
  job.launcher = Launcher::kSlurm;
  job.rank = need_int(env, "SLURM_PROCID", 0, "SLURM_STEP_ID");
  job.world_size = need_int(env, "SLURM_STEP_NUM_TASKS", 1, "SLURM_STEP_ID");
  job.local_rank = need_int(env, "SLURM_LOCALID", 0, "SLURM_STEP_ID");
  job.node_rank = need_int(env, "SLURM_NODEID", 0, "SLURM_STEP_ID");
  check_below("SLURM_PROCID", job.rank, "SLURM_STEP_NUM_TASKS", job.world_size);
  const auto tasks = env("SLURM_STEP_TASKS_PER_NODE");
  if (!tasks) {
    throw InvalidArgument(
        "environment variable SLURM_STEP_TASKS_PER_NODE is missing, although SLURM_STEP_ID is set");
  }
  job.local_world_size = slurm_tasks_on_node(*tasks, job.node_rank);
  check_below("SLURM_LOCALID", job.local_rank, "the node's tasks", job.local_world_size);
  job.restart_count = read_int(env, "SLURM_RESTART_COUNT", 0).value_or(0);
  job.master = slurm_master(env);
  return job;
}

// srun sets SLURM_STEP_NUM_TASKS in each task; a batch script or an interactive allocation has
// SLURM_PROCID=0 too, but is not a step, or is a step of one task.
bool in_slurm_step(const EnvLookup& env) {
  if (!env("SLURM_STEP_ID") || !env("SLURM_PROCID")) return false;
  return read_int(env, "SLURM_STEP_NUM_TASKS", 1).value_or(1) > 1;
}

// Reads "ps=0-0,trainer=1-4", which has no gaps.
std::vector<RoleRanks> read_roles(const std::string& text, int world_size) {
  std::vector<RoleRanks> roles;
  int next = 0;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view item = std::string_view(text).substr(at, end - at);
    const size_t equals = item.find('='), dash = item.rfind('-');
    if (equals == 0 || equals == std::string_view::npos || dash == std::string_view::npos ||
        dash < equals)
      break;
    const auto first = parse_int(item.substr(equals + 1, dash - equals - 1), next, next);
    const auto last = parse_int(item.substr(dash + 1), next, kMaxInt - 1);
    if (!first || !last) break;
    const int count = static_cast<int>(*last) - next + 1;
    roles.push_back({.name = std::string(item.substr(0, equals)), .first = next, .count = count});
    next += count;
    at = end + 1;
    if (at > text.size() && next == world_size) return roles;
  }
  throw InvalidArgument("LOCKSTEP_ROLES=" + text + " does not give the roles of ranks 0 to " +
                        std::to_string(world_size - 1) + ", such as ps=0-0,trainer=1-4");
}

}  // namespace

const RoleRanks& JobRole::ranks_of(std::string_view role) const {
  std::vector<std::string_view> names;
  for (const RoleRanks& ranks : roles) {
    if (ranks.name == role) return ranks;
    names.push_back(ranks.name);
  }
  throw InvalidArgument("this job has no role '" + std::string(role) +
                        "' (its roles: " + joined(names) + "); start it with lockstep run --role " +
                        std::string(role) + "=COUNT");
}

JobRole read_job_role(const EnvLookup& env) {
  const JobEnvironment job = read_job_environment(env);
  JobRole mine;
  mine.rank = job.rank;
  mine.count = job.world_size;
  if (job.launcher == Launcher::kLockstep || job.launcher == Launcher::kTorchrun)
    mine.name = env("ROLE_NAME").value_or(mine.name);
  const auto roles = env("LOCKSTEP_ROLES");
  if (roles && job.launcher == Launcher::kLockstep) {
    mine.roles = read_roles(*roles, job.world_size);
    for (const RoleRanks& role : mine.roles) {
      if (job.rank < role.first) break;
      mine.name = role.name;
      mine.rank = job.rank - role.first;
      mine.count = role.count;
    }
    return mine;
  }
  if (job.launcher == Launcher::kTorchrun) {
    mine.rank = read_int(env, "ROLE_RANK", 0).value_or(mine.rank);
    mine.count = read_int(env, "ROLE_WORLD_SIZE", 1).value_or(mine.count);
    check_below("ROLE_RANK", mine.rank, "ROLE_WORLD_SIZE", mine.count);
  }
  if (mine.count == job.world_size)
    mine.roles = {{.name = mine.name, .first = 0, .count = job.world_size}};
  return mine;
}

JobRole job_role() {
  wait_if_spare();
  return read_job_role(process_env());
}

const char* to_string(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "none";
    case Launcher::kLockstep:
      return "lockstep";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
    case Launcher::kMpich:
      return "mpirun";
    case Launcher::kSlurm:
      return "srun";
  }
  return "unknown";
}

JobEnvironment job_environment() {
  wait_if_spare();
  return read_job_environment(process_env());
}

Launcher launcher_of(const EnvLookup& env) {
  if (env("LOCKSTEP_STORE")) return Launcher::kLockstep;
  if (env("RANK") || env("WORLD_SIZE")) return Launcher::kTorchrun;
  // Checked before Slurm, because mpirun inside an allocation may start its own daemons by srun.
  if (const MpiLauncher* mpirun = mpi_launcher(env))
    return mpirun->family == MpiFamily::kOpenMpi ? Launcher::kOpenMpi : Launcher::kMpich;
  return in_slurm_step(env) ? Launcher::kSlurm : Launcher::kNone;
}

JobEnvironment read_job_environment(const EnvLookup& env) {
  switch (const Launcher launcher = launcher_of(env)) {
    case Launcher::kLockstep:
      return read_lockstep(env, *env("LOCKSTEP_STORE"));
    case Launcher::kTorchrun:
      return read_torchrun(env);
    case Launcher::kOpenMpi:
    case Launcher::kMpich:
      return read_mpirun(env, launcher, *mpi_launcher(env));
    case Launcher::kSlurm:
      return read_slurm(env);
    case Launcher::kNone:
      break;
  }
  return {};
}

}  // namespace lockstep::inline v0::launch
