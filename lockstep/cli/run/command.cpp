#include "lockstep/cli/run/command.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <sstream>

#include "lockstep/cli/run/mpi.h"
#include "lockstep/cli/run/nodes.h"
#include "lockstep/cli/run/settle.h"
#include "lockstep/cli/run/working_directory.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/log.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/remote_agents.h"
#include "lockstep/launch/remote_order.h"
#include "lockstep/launch/roles.h"
#include "lockstep/launch/topology.h"

namespace lockstep::inline v0::cli {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

int count_gpus() {
  if (const auto visible = process_env()("CUDA_VISIBLE_DEVICES")) {
    const auto devices = split(*visible, ',');
    return devices.empty() || devices.front() == "-1" ? 0 : static_cast<int>(devices.size());
  }
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia") && parse_int(std::string_view(name).substr(6), 0)) ++count;
  }
  return count;
}

int nproc_of(const RunFlags& flags, const MachineFacts& machine) {
  if (flags.nproc == "cpu") return machine.cpus;
  if (flags.nproc == "auto") return machine.gpus > 0 ? machine.gpus : machine.cpus;
  if (flags.nproc == "gpu") {
    if (machine.gpus == 0) throw UsageError("--nproc-per-node=gpu: no GPU found on this host");
    return machine.gpus;
  }
  const auto count = parse_int(flags.nproc, 1, launch::kMostRanksOfAHost);
  if (!count) {
    throw UsageError("--nproc-per-node=" + flags.nproc + ": expected a number of ranks from 1 to " +
                     std::to_string(launch::kMostRanksOfAHost) + ", auto, cpu or gpu");
  }
  return static_cast<int>(*count);
}

void check_signals(const std::string& names) {
  for (const std::string& name : split(names, ',')) {
    static const std::set<std::string> kHandled = {"SIGTERM", "SIGINT",  "SIGHUP",
                                                   "SIGQUIT", "SIGUSR1", "SIGUSR2"};
    if (!kHandled.contains(name)) {
      throw UsageError("--signals-to-handle: " + name +
                       " cannot be passed on (SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and "
                       "SIGUSR2 always are)");
    }
  }
}

std::set<int> ranks_to_show(const std::string& text) {
  std::set<int> ranks;
  for (const std::string& part : split(text, ',')) {
    const auto rank = parse_int(part, 0, 1 << 16);
    if (!rank)
      throw UsageError("--local-ranks-filter=" + text + ": expected local ranks, such as 0,1");
    ranks.insert(static_cast<int>(*rank));
  }
  return ranks;
}

// Returns the program's command line, under Python where it needs one.
std::vector<std::string> command_of(const RunFlags& flags, const MachineFacts& machine) {
  if (flags.program.empty()) {
    throw UsageError("no program to run; for example: lockstep run --nproc-per-node 2 ./train");
  }
  if (flags.module && flags.no_python)
    throw UsageError("--module and --no-python contradict each other");
  const std::string& name = flags.program.front();
  const bool script =
      !flags.module && (flags.run_path || name.ends_with(".py")) && !flags.no_python;
  std::vector<std::string> command;
  if (script || flags.module) {
    if (machine.python.empty())
      throw UsageError("'" + name + "' needs python3, which is not on PATH; set PYTHON_EXEC");
    if (script && !std::filesystem::exists(name))
      throw UsageError("script '" + name + "' does not exist");
    command = {machine.python, "-u"};
    if (flags.module) command.emplace_back("-m");
  } else {
    find_program(name);
  }
  command.push_back(name);
  if (flags.no_use_env) command.emplace_back("--local-rank=${local_rank}");
  command.insert(command.end(), flags.program.begin() + 1, flags.program.end());
  return command;
}

template <typename Parse>
auto with_flag(const char* flag, Parse parse) {
  try {
    return parse();
  } catch (const InvalidArgument& error) {
    throw UsageError(std::string(flag) + ": " + error.what());
  }
}

std::vector<launch::Role> roles_of(const RunFlags& flags) {
  return with_flag("--role", [&] {
    std::vector<launch::Role> roles;
    for (const std::string& text : flags.roles) roles.push_back(launch::parse_role(text));
    launch::check_roles(roles);
    return roles;
  });
}

// The number of ranks that was asked for; nullopt: none was given.
std::optional<int> asked_ranks(const RunFlags& flags, const MachineFacts& machine,
                               const std::vector<launch::Role>& roles) {
  const int nproc = nproc_of(flags, machine);
  if (roles.empty()) return flags.nproc_given ? std::optional(nproc) : std::nullopt;
  if (!flags.names_hosts() && flags.nnodes != "1")
    throw UsageError("--role " + flags.roles.front() + " with --nnodes=" + flags.nnodes +
                     ": roles are given once, for all hosts; use -H HOST:SLOTS,... instead");
  const int ranks = launch::rank_count(roles);
  if (flags.nproc_given && nproc != ranks)
    throw UsageError("--nproc-per-node=" + flags.nproc + " contradicts the roles, which have " +
                     std::to_string(ranks) + " ranks (" + launch::role_ranges(roles) +
                     "); leave it out");
  return ranks;
}

}  // namespace

MachineFacts machine_facts() {
  MachineFacts facts;
  facts.cpus = usable_cpu_count();
  facts.gpus = count_gpus();
  facts.processors = launch::read_topology(allowed_cpus());
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) == 0) facts.host_name = name;
  facts.addresses = interface_addresses();
  facts.env = process_env();
  facts.python = facts.env("PYTHON_EXEC").value_or("");
  if (facts.python.empty()) {
    try {
      facts.python = find_program("python3");
    } catch (const LaunchError&) {
      // Only programs in Python need it.
    }
  }
  return facts;
}

RunPlan plan_run(const RunFlags& given, const MachineFacts& machine) {
  const SettledFlags settled = settle(given, machine);
  const RunFlags& flags = settled.flags;
  if (!flags.refused.empty()) {
    throw UsageError(flags.refused.front() + " is torchrun's and not supported here");
  }
  check_signals(flags.signals);
  RunPlan plan;
  launch::LaunchOptions& options = plan.options;
  options.roles = roles_of(flags);
  const std::optional<int> asked = asked_ranks(flags, machine, options.roles);
  NodesPlan nodes = plan_nodes(flags, machine, settled.mapping, asked);
  options.nproc = nodes.nproc.value_or(asked.value_or(nproc_of(flags, machine)));
  options.nodes = std::move(nodes.nodes);
  plan.notes = std::move(nodes.notes);
  options.command = command_of(flags, machine);
  // A name that is found on this host's PATH means the same file on the others.
  if (options.nodes && !options.nodes->remotes.empty())
    options.program = std::filesystem::absolute(find_program(options.command.front()));
  if (flags.max_restarts < 0) throw UsageError("--max-restarts must not be negative");
  if (!(flags.grace >= 0 && flags.grace < 1e6))
    throw UsageError("--grace: expected seconds, 0 or more");
  options.grace = std::chrono::milliseconds(static_cast<int64_t>(flags.grace * 1000));
  const double stop_grace = flags.stop_grace.value_or(std::max(25.0, flags.grace));
  if (!(stop_grace >= 0 && stop_grace < 1e6))
    throw UsageError("--stop-grace: expected seconds, 0 or more");
  options.stop_grace = std::chrono::milliseconds(static_cast<int64_t>(stop_grace * 1000));
  options.max_restarts = flags.max_restarts;
  options.on_failure = launch::parse_on_failure(flags.on_failure, flags.max_restarts);
  options.spare_ranks = flags.spare_ranks;
  if (!flags.simulate_failures.empty())
    options.simulate_failures = with_flag("--simulate-failures", [&] {
      return launch::parse_failure_drill(flags.simulate_failures);
    });
  if (!flags.output_filename.empty() && !flags.log_dir.empty())
    throw UsageError(
        "--output-filename and --log-dir contradict each other; leave one of them out");
  options.log_dir = flags.log_dir.empty() ? flags.output_filename : flags.log_dir;
  options.allow_lost_logs = flags.allow_lost_logs;
  // The agents of other hosts get it as well, and so do ranks without an agent.
  if (!flags.trace_dir.empty())
    options.env["LOCKSTEP_TRACE_DIR"] = std::filesystem::absolute(flags.trace_dir).string();
  options.redirects =
      with_flag("--redirects", [&] { return launch::parse_redirects(flags.redirects); });
  // Under mpirun each rank's output goes to its files and to the terminal.
  const bool keep = !flags.output_filename.empty() && flags.redirects == "0" && flags.tee == "0";
  options.tee = with_flag("--tee", [&] { return launch::parse_redirects(keep ? "3" : flags.tee); });
  options.show_ranks = ranks_to_show(flags.show_ranks);
  if (flags.prefix) options.prefix = launch::LinePrefix::kRank;
  if (flags.tag_output) options.prefix = launch::LinePrefix::kRankAndStream;
  options.prefix_template = flags.prefix_template;
  if (options.prefix_template.empty())  // as torchrun of 2.13 does
    options.prefix_template = machine.env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  options.substitute_local_rank = true;
  options.pin = !flags.no_pin && settled.mapping.pin;
  options.binding = settled.mapping.binding;
  options.report_bindings = flags.report_bindings;
  // Before anything starts; other hosts check their own ranks.
  if (options.binding.given && options.nproc > 0)
    (void)launch::bound_cpus(machine.processors, options.binding, options.nproc);
  if (flags.threads.value_or(1) < 1)
    throw UsageError("--threads is " + std::to_string(*flags.threads) + "; give 1 or more");
  options.threads_per_rank = flags.threads;
  options.master_addr = flags.master_addr.value_or("127.0.0.1");
  options.master_port = flags.master_port;
  if (!flags.rdzv_id.empty()) {
    options.run_id = flags.rdzv_id;
  } else if (flags.standalone) {
    options.run_id = to_hex(random_bytes(8));
  }
  options.role = flags.role;
  for (const std::string& variable : flags.forward) {
    const auto equals = variable.find('=');
    if (equals == 0) throw UsageError("-x " + variable + ": expected NAME or NAME=VALUE");
    if (equals != std::string::npos)
      options.env[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  if (!flags.backend.empty()) options.env["LOCKSTEP_BACKEND"] = flags.backend;
  if (!flags.device.empty()) options.env["LOCKSTEP_DEVICE"] = flags.device;
  if (nodes.devices) options.env["CUDA_VISIBLE_DEVICES"] = *nodes.devices;
  if (!flags.gpu_ids.empty() && flags.gpu_ids != "all")
    options.env["CUDA_VISIBLE_DEVICES"] = flags.gpu_ids;
  launch::check_spare_ranks(options);
  launch::check_spare_nodes(options);
  plan.by_mpirun = flags.backend == "mpi" || flags.backend == "hierarchical:mpi";
  if (plan.by_mpirun) check_mpi_flags(flags, plan);
  if (!flags.numa_binding.empty()) {
    plan.notes.emplace_back(
        "--numa-binding is ignored: each rank has its share of the processors (--no-pin: all of "
        "them)");
  }
  return plan;
}

int run_command(const std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{launch::kRemoteAgentFlag})
    return launch::run_remote_agent(STDIN_FILENO);
  const RunFlags flags = parse_run_flags(arguments, process_env());
  if (flags.help) {
    write_stdout(help_output(run_table(), run_help()));
    return 0;
  }
  const RunFlags there = in_working_directory(flags);  // before the environment is read
  const RunPlan plan = plan_run(there, machine_facts());
  for (const std::string& note : plan.notes) write_all(STDERR_FILENO, "[lockstep] " + note + "\n");
  return plan.by_mpirun ? run_by_mpirun(plan) : launch::launch(plan.options).exit_code;
}

}  // namespace lockstep::inline v0::cli
