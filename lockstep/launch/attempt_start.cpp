// The part of Attempt that starts ranks.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/memory_settings.h"
#include "lockstep/launch/attempt.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/line_prefix.h"
#include "lockstep/launch/placement.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::launch {
namespace {

int terminal_columns(const Console& out, const Console& err) {
  if (!out.terminal() || !err.terminal()) return 0;
  winsize size{};
  if (::ioctl(err.fd(), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

// Programs that choose processors themselves name them by number: a narrower mask would break them.
bool user_places_threads(const EnvLookup& env) {
  return env("GOMP_CPU_AFFINITY").has_value() || env("KMP_AFFINITY").has_value();
}

std::vector<std::string> command_of(const LaunchOptions& options, int rank) {
  std::vector<std::string> command = options.command;
  if (!options.substitute_local_rank) return command;
  static constexpr std::string_view kMacro = "${local_rank}";
  for (size_t i = 1; i < command.size(); ++i) {
    for (size_t at = 0; (at = command[i].find(kMacro, at)) != std::string::npos;) {
      command[i].replace(at, kMacro.size(), std::to_string(rank));
    }
  }
  return command;
}

}  // namespace

std::unique_ptr<Worker> Attempt::start_rank(int rank) {
  const EnvLookup env = process_env();
  AttemptPlan plan;
  plan.node = job_.node;
  plan.interface_chosen = options_.nodes && !options_.nodes->interface.empty();
  // Of one of them at most: agent.h.
  const int restart_count = job_.node.restarts + supervisor_.restarts(rank);
  const RankNames names = {
      .role = options_.roles.empty()
                  ? options_.role
                  : options_.roles[place_in_role(options_.roles, job_.node.first_rank + rank).role]
                        .name,
      .rank = job_.node.first_rank + rank,
      .local_rank = rank};
  plan.restart_count = restart_count;
  plan.max_restarts = options_.max_restarts;
  plan.replaces = on_failure_of(options_) == OnFailure::kReplace;
  plan.run_id = options_.run_id;
  plan.role = options_.role;
  plan.roles = options_.roles;
  plan.secret_fd = secret_file_.get();
  plan.board_fd = board_.fd();
  plan.threads = options_.threads_per_rank;
  plan.default_threads = threads_per_rank(usable_cpu_count(), ranks_);
  plan.memory_of_rank = allowed_memory(ranks_);
  plan.terminal_columns = terminal_columns(context_.out, context_.err);

  const Redirect tee = redirect_of(options_.tee, rank),
                 redirect = redirect_of(options_.redirects, rank);
  const bool shown = options_.show_ranks.empty() || options_.show_ranks.contains(rank);
  std::filesystem::path folder;
  UniqueFd error_file;
  std::string error_path;
  if (context_.logs != nullptr) {
    folder = context_.logs->rank_folder(job_.node.generation + supervisor_.restarts(rank), rank);
    error_path = folder / "error.json";
  } else {
    // Without a name in any folder it cannot be left behind.
    error_file.reset(::memfd_create("lockstep-error", MFD_CLOEXEC));
    if (!error_file) throw system_error("memfd_create", errno);
    error_path = "/proc/self/fd/" + std::to_string(error_file.get());
  }
  const auto stream = [&](bool to_tee, bool to_file, Console& console, const char* name) {
    StreamPlan result;
    result.file_only = to_file && !to_tee;
    if (to_file || to_tee) result.file = folder / name;
    if (shown && !result.file_only) result.console = &console;
    result.earlier = &console == &context_.err ? &context_.out : &context_.err;
    result.prefix = line_prefix(options_, names, &console == &context_.err);
    if (&console == &context_.err && ranks_ > 1) result.hold_first_lines = FirstLines::kCount;
    result.show_unfinished = job_.node.first_rank + rank == 0 && console.terminal();
    return result;
  };

  SubprocessOptions start;
  start.command = command_of(options_, rank);
  start.program = options_.program;
  Variables variables = rank_variables(plan, rank, error_path, env);
  for (const auto& [name, value] : options_.env) variables[name] = value;
  start.env = merge_environment(current_environment(), variables);
  start.stdin_fd = no_input_.get();
  start.inherit = {secret_file_.get(), board_.fd()};
  if (options_.pin && !user_places_threads(env))
    start.cpus = cpu_share(allowed_cpus(), ranks_, rank);
  auto worker = std::make_unique<Worker>(
      std::move(start), stream(has_stdout(tee), has_stdout(redirect), context_.out, "stdout.log"),
      stream(has_stderr(tee), has_stderr(redirect), context_.err, "stderr.log"), rank,
      std::move(error_file), error_path);
  sentinel_.watch(rank, worker->process().pid());
  return worker;
}

void Attempt::start_again(int rank) {
  std::unique_ptr<Worker>& worker = workers_[static_cast<size_t>(rank)];
  worker->err().finish();
  worker->out().finish();
  std::erase_if(exits_, [rank](const RankExit& exit) { return exit.local_rank == rank; });
  board_.leave(rank);
  if (worker->process().group_alive()) former_.push_back(std::move(worker));
  worker = start_rank(rank);
  sights_[static_cast<size_t>(rank)] = {.rank = job_.node.first_rank + rank,
                                        .pid = worker->process().pid()};
}

// Of a rank that failed and had restarts left. After what it wrote itself.
void Attempt::say_restart(const RankExit& exit, bool left_behind) {
  Worker& worker = *workers_[static_cast<size_t>(exit.local_rank)];
  worker.err().overtake(std::chrono::steady_clock::now());
  const int rank = job_.node.first_rank + exit.local_rank;
  const bool replaces = supervisor_.replacements() > 0;
  const int number = replaces ? supervisor_.replaced() : supervisor_.restarts(exit.local_rank);
  const int most =
      replaces ? supervisor_.replacements() : supervisor_.most_restarts(exit.local_rank);
  const std::string role = name_in_role(options_.roles, rank);
  const int pid = worker.process().pid();
  context_.err.put(
      -2,
      {left_behind ? left_behind_line(rank, role, exit.status, pid)
                   : restart_line(rank, role, exit.status, pid,
                                  supervisor_.waits(exit.local_rank) ? number : 0, most)},
      "");
}

}  // namespace lockstep::launch
