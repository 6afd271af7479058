#include "lockstep/launch/attempt.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/placement.h"
#include "lockstep/launch/rank_environment.h"

namespace lockstep::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollWithoutPidfdMs = 10;
constexpr auto kGroupPause = std::chrono::milliseconds(2);
constexpr auto kKilledGroupTimeout = std::chrono::seconds(2);

// The secret in a file without a name, which the ranks inherit: it is neither on a command line nor
// in an environment.
UniqueFd make_secret_file(const Secret& secret) {
  UniqueFd file(::memfd_create("lockstep-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw system_error("memfd_create", errno);
  write_all(file.get(), secret.text());
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return file;
}

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

int ms_until(Supervisor::Time time) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60000));
}

}  // namespace

Attempt::Attempt(const AgentContext& context, int restart_count)
    : context_(context),
      options_(context.options),
      secret_(Secret::generate()),
      secret_file_(make_secret_file(secret_)),
      board_(CallBoard::create(options_.nproc)),
      store_({"127.0.0.1", 0}, secret_),
      master_port_(options_.master_port),
      supervisor_(options_.nproc, options_.grace) {
  for (int rank = 0; rank < options_.nproc; ++rank) start_rank(rank, restart_count);
}

void Attempt::start_rank(int rank, int restart_count) {
  const EnvLookup env = process_env();
  AttemptPlan plan;
  plan.ranks = options_.nproc;
  plan.restart_count = restart_count;
  plan.max_restarts = options_.max_restarts;
  plan.run_id = options_.run_id;
  plan.role = options_.role;
  plan.master = {options_.master_addr, master_port_.port()};
  plan.store = store_.address();
  plan.secret_fd = secret_file_.get();
  plan.board_fd = board_.fd();
  plan.threads = options_.threads_per_rank;
  plan.default_threads = threads_per_rank(usable_cpu_count(), options_.nproc);
  plan.terminal_columns = terminal_columns(context_.out, context_.err);

  const Redirect tee = redirect_of(options_.tee, rank),
                 redirect = redirect_of(options_.redirects, rank);
  const bool shown = options_.show_ranks.empty() || options_.show_ranks.contains(rank);
  std::filesystem::path folder;
  UniqueFd error_file;
  std::string error_path;
  if (context_.logs != nullptr) {
    folder = context_.logs->rank_folder(restart_count, rank);
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
    if (options_.prefix) result.prefix = "[" + std::to_string(rank) + "]: ";
    if (&console == &context_.err && options_.nproc > 1)
      result.hold_first_lines = FirstLines::kCount;
    result.show_unfinished = rank == 0 && console.terminal();
    return result;
  };

  SubprocessOptions start;
  start.command = command_of(options_, rank);
  start.program = options_.program;
  Variables variables = rank_variables(plan, rank, error_path, env);
  for (const auto& [name, value] : options_.env) variables[name] = value;
  start.env = merge_environment(current_environment(), variables);
  start.inherit = {secret_file_.get(), board_.fd()};
  if (options_.pin && !user_places_threads(env))
    start.cpus = cpu_share(allowed_cpus(), options_.nproc, rank);
  workers_.push_back(std::make_unique<Worker>(
      std::move(start), stream(has_stdout(tee), has_stdout(redirect), context_.out, "stdout.log"),
      stream(has_stderr(tee), has_stderr(redirect), context_.err, "stderr.log"), rank,
      std::move(error_file), error_path));
}

AttemptResult Attempt::run() {
  watch();
  end_groups();
  for (const auto& worker : workers_) {
    worker->out().finish();
    worker->err().finish();
  }
  context_.out.close_line();
  context_.err.close_line();
  write_rest();
  AttemptResult result;
  if (supervisor_.failure()) result.failure = describe(*supervisor_.failure());
  result.stop_signal = supervisor_.stop_signal();
  return result;
}

void Attempt::watch() {
  while (!supervisor_.done()) {
    wait_for_events();
    look_for_exits();
    obey(supervisor_.on_time(Clock::now()));
  }
}

void Attempt::wait_for_events() {
  std::vector<pollfd> polls{{context_.signals.fd(), POLLIN, 0}};
  std::vector<OutputStream*> streams{nullptr};
  int timeout = -1;
  const auto wake_at = [&](std::optional<Time> time) {
    if (!time) return;
    const int ms = ms_until(*time);
    timeout = timeout < 0 ? ms : std::min(timeout, ms);
  };
  wake_at(supervisor_.next_time());
  const Time now = Clock::now();
  for (int rank = 0; rank < options_.nproc; ++rank) {
    const auto& worker = workers_[static_cast<size_t>(rank)];
    for (OutputStream* stream : {&worker->out(), &worker->err()}) {
      wake_at(stream->on_time(now));
      if (stream->poll_fd() < 0) continue;
      polls.push_back({stream->poll_fd(), POLLIN, 0});
      streams.push_back(stream);
    }
    if (!supervisor_.running(rank)) continue;
    if (worker->process().exit_fd() >= 0) {
      polls.push_back({worker->process().exit_fd(), POLLIN, 0});
      streams.push_back(nullptr);
    } else {
      timeout = timeout < 0 ? kPollWithoutPidfdMs : std::min(timeout, kPollWithoutPidfdMs);
    }
  }
  for (Console* console : {&context_.out, &context_.err}) {
    console->flush();
    if (console->backlog() == 0) continue;
    polls.push_back({console->fd(), POLLOUT, 0});
    streams.push_back(nullptr);
  }
  if (::poll(polls.data(), polls.size(), timeout) <= 0) return;
  for (size_t i = 0; i < polls.size(); ++i) {
    if (streams[i] != nullptr && polls[i].revents != 0) streams[i]->pump(Clock::now());
  }
  for (Console* console : {&context_.out, &context_.err}) {
    console->flush();
    if (!console->broken() || reader_lost_) continue;
    reader_lost_ = true;
    obey(supervisor_.on_signal(SIGPIPE, Clock::now()));
  }
  for (const int signal : context_.signals.take())
    obey(supervisor_.on_signal(signal, Clock::now()));
}

void Attempt::obey(const std::vector<SignalOrder>& orders) {
  for (const SignalOrder& order : orders) {
    Subprocess& process = workers_[static_cast<size_t>(order.local_rank)]->process();
    if (order.group) {
      process.signal_group(order.signal);
    } else {
      process.signal(order.signal);
    }
  }
}

// Looks at all ranks at once, so that of several that are dead the right one is blamed.
void Attempt::look_for_exits() {
  std::vector<RankExit> exits;
  for (int rank = 0; rank < options_.nproc; ++rank) {
    if (!supervisor_.running(rank)) continue;
    if (const auto status = workers_[static_cast<size_t>(rank)]->process().poll())
      exits.push_back({rank, *status});
  }
  if (exits.empty()) return;
  const bool had_failed = supervisor_.failure().has_value();
  obey(supervisor_.on_exits(exits, Clock::now()));
  if (had_failed || !supervisor_.failure()) return;
  const RankExit& failure = *supervisor_.failure();
  if (failure.status.exit_code == 2) show_complaint_once(failure.local_rank);
}

// The others may be saying the same in the same words.
void Attempt::show_complaint_once(int complaining_rank) {
  OutputStream& complaining = workers_[static_cast<size_t>(complaining_rank)]->err();
  complaining.drain(Clock::now());
  for (int rank = 0; rank < options_.nproc; ++rank) {
    if (rank == complaining_rank) continue;
    FirstLines& other = workers_[static_cast<size_t>(rank)]->err().first_lines();
    other.do_not_repeat(complaining.first_lines().text());
    if (other.shown().ends_with(complaining.first_lines().held_text())) {
      complaining.first_lines().do_not_repeat(other.shown());
    }
  }
}

bool Attempt::any_group_alive() {
  bool alive = false;
  for (const auto& worker : workers_) {
    // This process is the reaper of its descendants (agent.cpp): orphans of the group end up here.
    while (::waitpid(-worker->process().pid(), nullptr, WNOHANG) > 0) {
    }
    alive = alive || worker->process().group_alive();
  }
  return alive;
}

void Attempt::end_groups() {
  if (!any_group_alive()) return;
  const auto signal_all = [&](int signal) {
    for (const auto& worker : workers_) {
      if (worker->process().group_alive()) worker->process().signal_group(signal);
    }
  };
  bool killed = supervisor_.killing();
  signal_all(killed ? SIGKILL : SIGTERM);
  Deadline deadline = Deadline::after(killed ? kKilledGroupTimeout : options_.grace);
  while (any_group_alive()) {
    pollfd waiting{context_.signals.fd(), POLLIN, 0};
    const bool hurry = ::poll(&waiting, 1, static_cast<int>(kGroupPause.count())) > 0 &&
                       !context_.signals.take().empty();
    for (const auto& worker : workers_) {
      worker->out().pump(Clock::now());
      worker->err().pump(Clock::now());
    }
    context_.out.flush();
    context_.err.flush();
    if (!killed && (hurry || deadline.expired())) {
      signal_all(SIGKILL);
      killed = true;
      deadline = Deadline::after(kKilledGroupTimeout);
    } else if (killed && deadline.expired()) {
      log_warning("a process that a rank started does not die of SIGKILL; it is left behind");
      return;
    }
  }
}

// A reader may be slow (a pager): wait for it, until a signal says otherwise.
void Attempt::write_rest() {
  while (context_.out.backlog() + context_.err.backlog() > 0) {
    std::vector<pollfd> polls{{context_.signals.fd(), POLLIN, 0}};
    for (const Console* console : {&context_.out, &context_.err}) {
      if (console->backlog() > 0) polls.push_back({console->fd(), POLLOUT, 0});
    }
    ::poll(polls.data(), polls.size(), -1);
    if (polls[0].revents != 0 && !context_.signals.take().empty()) return;
    context_.out.flush();
    context_.err.flush();
  }
}

WorkerFailure Attempt::describe(const RankExit& exit) const {
  Worker& worker = *workers_[static_cast<size_t>(exit.local_rank)];
  WorkerFailure failure;
  failure.rank = failure.local_rank = exit.local_rank;
  failure.pid = worker.process().pid();
  failure.exit_code = exit.status.exit_code;
  failure.signal = exit.status.signal;
  failure.last_call = board_.read(exit.local_rank);
  failure.message = error_file_message(worker.error_text());
  failure.tail = worker.err().tail().lines();
  if (failure.tail.empty()) {
    failure.tail = worker.out().tail().lines();
    failure.tail_stream = "stdout";
  }
  return failure;
}

}  // namespace lockstep::launch
