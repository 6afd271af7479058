// The part of Attempt that starts ranks.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
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

namespace lockstep::inline v0::launch {
namespace {

int terminal_columns(const Console& out, const Console& err) {
  if (!out.terminal() || !err.terminal()) return 0;
  winsize size{};
  if (::ioctl(err.fd(), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

// Programs that choose processors themselves address them by number, and a narrower mask would
// break them.
bool user_places_threads(const EnvLookup& env) {
  return env("GOMP_CPU_AFFINITY").has_value() || env("KMP_AFFINITY").has_value();
}

std::vector<std::string> command_of(const LaunchOptions& options, int rank) {
  std::vector<std::string> command = options.command;
  if (!options.substitute_local_rank) return command;
  for (size_t i = 1; i < command.size(); ++i) {
    for (size_t at = 0; (at = command[i].find(kLocalRankMacro, at)) != std::string::npos;) {
      command[i].replace(at, kLocalRankMacro.size(), std::to_string(rank));
    }
  }
  return command;
}

struct ErrorFile {
  UniqueFd fd;  // of a nameless file
  std::string path;
};

// A file without a name cannot be left behind.
ErrorFile nameless_error_file() {
  UniqueFd fd(::memfd_create("lockstep-error", MFD_CLOEXEC));
  if (!fd) throw system_error("memfd_create", errno);
  std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  return {std::move(fd), std::move(path)};
}

}  // namespace

Variables Attempt::variables_of(int rank, const std::string& error_file) {
  AttemptPlan plan;
  plan.node = job_.node;
  plan.interface_chosen = options_.nodes && !options_.nodes->interface.empty();
  // Of all ranks or, where ranks are replaced, of this one: agent.h.
  plan.restart_count = job_.node.restarts + job_.node.moves + supervisor_.restarts(rank);
  plan.max_restarts = options_.max_restarts;
  plan.replaces = on_failure_of(options_) == OnFailure::kReplace;
  plan.shrinks = on_failure_of(options_) == OnFailure::kShrink;
  plan.run_id = options_.run_id == kUnnamedRun ? job_.node.job : options_.run_id;
  plan.role = options_.role;
  plan.roles = options_.roles;
  plan.secret_fd = secret_file_.get();
  plan.board_fd = board_.fd();
  plan.threads = options_.threads_per_rank;
  plan.default_threads = threads_per_rank(usable_cpu_count(), ranks_);
  // One number for all ranks of the host: libraries expect the same on all.
  for (const RankCpus& bound : bound_)
    plan.default_threads = std::min(plan.default_threads, bound.threads);
  plan.memory_of_rank = allowed_memory(ranks_);
  plan.spare_device = context_.devices.spare_of(rank);
  plan.terminal_columns = terminal_columns(context_.out, context_.err);
  return rank_variables(plan, rank, error_file, process_env());
}

Attempt::Streams Attempt::streams_of(int rank) {
  const RankNames names = {
      .role = options_.roles.empty()
                  ? options_.role
                  : options_.roles[place_in_role(options_.roles, job_.node.first_rank + rank).role]
                        .name,
      .rank = job_.node.first_rank + rank,
      .local_rank = rank};
  const Redirect tee = redirect_of(options_.tee, rank),
                 redirect = redirect_of(options_.redirects, rank);
  const bool shown = options_.show_ranks.empty() || options_.show_ranks.contains(rank);
  Streams streams;
  if (context_.logs != nullptr)
    streams.folder =
        context_.logs->rank_folder(job_.node.generation + supervisor_.restarts(rank), rank);
  const auto stream = [&](bool to_tee, bool to_file, Console& console, const char* name) {
    StreamPlan result;
    if (to_file || to_tee) {
      result.file = streams.folder / name;
      result.lost = &context_.lost;
    }
    if (shown && (to_tee || !to_file)) result.console = &console;
    result.earlier = &console == &context_.err ? &context_.out : &context_.err;
    result.prefix = line_prefix(options_, names, &console == &context_.err);
    if (&console == &context_.err && ranks_ > 1) result.hold_first_lines = FirstLines::kCount;
    result.show_unfinished = job_.node.first_rank + rank == 0 && console.terminal();
    return result;
  };
  streams.out = stream(has_stdout(tee), has_stdout(redirect), context_.out, "stdout.log");
  streams.err = stream(has_stderr(tee), has_stderr(redirect), context_.err, "stderr.log");
  return streams;
}

std::vector<int> Attempt::cpus_of(int rank) const {
  if (!bound_.empty()) return bound_[static_cast<size_t>(rank)].cpus;
  if (!options_.pin || user_places_threads(process_env())) return {};
  return cpu_share(allowed_cpus(), ranks_, rank);
}

std::unique_ptr<Worker> Attempt::start_rank(int rank, Streams streams) {
  ErrorFile error =
      streams.folder.empty() ? nameless_error_file() : ErrorFile{{}, streams.folder / "error.json"};
  SubprocessOptions start;
  start.command = command_of(options_, rank);
  start.program = options_.program;
  start.body = options_.body;
  Variables variables = variables_of(rank, error.path);
  for (const auto& [name, value] : options_.env) variables[name] = value;
  start.env = merge_environment(current_environment(), variables);
  if (!options_.stdin_for_ranks) start.stdin_fd = no_input_.get();
  start.inherit = {secret_file_.get(), board_.fd()};
  start.cpus = cpus_of(rank);
  auto worker =
      std::make_unique<Worker>(std::move(start), std::move(streams.out), std::move(streams.err),
                               rank, std::move(error.fd), error.path);
  sentinel_.watch(rank, worker->process().pid());
  if (spares_) spares_->on_rank_started(std::chrono::steady_clock::now());
  say_binding(rank);
  return worker;
}

void Attempt::say_binding(int rank) {
  if (!options_.report_bindings) return;
  const std::vector<int> cpus = cpus_of(rank);
  const std::string where = cpus.empty()
                                ? "is not bound: it has processors " + cpu_list(allowed_cpus())
                                : "is bound to processors " + cpu_list(cpus);
  context_.err.put(
      -2, {"[lockstep] rank " + std::to_string(job_.node.first_rank + rank) + " " + where + "\n"},
      "");
}

// Its output stays in its pipes, which are not read before it has a rank.
std::unique_ptr<Worker> Attempt::start_spare(int link) {
  ErrorFile error = nameless_error_file();
  SubprocessOptions start;
  start.command = options_.command;
  start.program = options_.program;
  start.body = options_.body;
  Variables variables = variables_of_all(variables_of(0, error.path));
  variables["TORCHELASTIC_ERROR_FILE"] = error.path;
  for (const auto& [name, value] : options_.env) variables[name] = value;
  variables[kSpareFd] = std::to_string(link);
  start.env = merge_environment(current_environment(), variables);
  start.stdin_fd = no_input_.get();
  start.inherit = {secret_file_.get(), board_.fd(), link};
  return std::make_unique<Worker>(std::move(start), StreamPlan{}, StreamPlan{}, 0,
                                  std::move(error.fd), error.path);
}

std::unique_ptr<Worker> Attempt::take_spare(int rank, const Streams& streams) {
  if (!spares_ || !spares_->available()) return nullptr;
  const std::filesystem::path error =
      streams.folder.empty() ? std::filesystem::path() : streams.folder / "error.json";
  SpareOrder order{.variables = variables_of_one(variables_of(rank, error)), .cpus = cpus_of(rank)};
  // Without log files the spare writes its error to the file that it was started with.
  if (error.empty()) order.variables.erase("TORCHELASTIC_ERROR_FILE");
  for (const auto& [name, value] : options_.env) order.variables.erase(name);
  auto worker = spares_->give(order, rank, std::chrono::steady_clock::now());
  if (!worker) return nullptr;
  worker->become(streams.out, streams.err, rank, error);
  const int number = job_.node.first_rank + rank;
  context_.err.put(
      -2, {spare_taken_line(number, name_in_role(options_.roles, number), worker->process().pid())},
      "");
  return worker;
}

void Attempt::keep_spares() {
  if (options_.spare_ranks == 0 || ranks_ == 0) return;
  spares_.emplace(
      options_.spare_ranks, sentinel_, ranks_,
      Spares::Effects{.start = [this](int link) { return start_spare(link); },
                      .say = [this](const std::string& line) { context_.err.put(-2, {line}, ""); },
                      .leave = [this](auto worker) { former_.push_back(std::move(worker)); }},
      std::chrono::steady_clock::now());
}

// A job that is ending needs no spares.
int Attempt::spares_needed() const {
  return supervisor_.stopping() || supervisor_.done() ? 0 : supervisor_.replacements_left();
}

void Attempt::tend_spares() {
  if (!spares_) return;
  if (supervisor_.stopping()) spares_->dismiss();
  spares_->tend(std::chrono::steady_clock::now(), spares_needed());
}

void Attempt::start_again(int rank) {
  std::unique_ptr<Worker>& worker = workers_[static_cast<size_t>(rank)];
  worker->err().finish();
  worker->out().finish();
  std::erase_if(exits_, [rank](const RankExit& exit) { return exit.local_rank == rank; });
  board_.leave(rank);
  if (worker->process().group_alive()) former_.push_back(std::move(worker));
  Streams streams = streams_of(rank);
  auto spare = take_spare(rank, streams);
  worker = spare ? std::move(spare) : start_rank(rank, std::move(streams));
  sights_[static_cast<size_t>(rank)] = {.rank = job_.node.first_rank + rank,
                                        .pid = worker->process().pid()};
  still_[static_cast<size_t>(rank)] = {.begun = std::chrono::steady_clock::now()};
}

// For a rank that failed and had restarts left, or was done. Follows the rank's own output.
void Attempt::say_end(const RankExit& exit, bool left_behind) {
  Worker& worker = *workers_[static_cast<size_t>(exit.local_rank)];
  worker.err().overtake(std::chrono::steady_clock::now());
  const int rank = job_.node.first_rank + exit.local_rank;
  const bool replaces = supervisor_.replacements() > 0;
  const int number = exit.excused ? kUncounted
                     : replaces   ? supervisor_.replaced()
                                  : supervisor_.restarts(exit.local_rank);
  const int most =
      replaces ? supervisor_.replacements() : supervisor_.most_restarts(exit.local_rank);
  const std::string role = name_in_role(options_.roles, rank);
  const int pid = worker.process().pid();
  context_.err.put(
      -2,
      {exit.done     ? done_line(rank, role, exit.status, pid)
       : left_behind ? left_behind_line(rank, role, exit.status, pid)
                     : restart_line(rank, role, exit.status, pid,
                                    supervisor_.waits(exit.local_rank) ? number : 0, most)},
      "");
}

}  // namespace lockstep::inline v0::launch
