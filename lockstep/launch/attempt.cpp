#include "lockstep/launch/attempt.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/memory_settings.h"
#include "lockstep/core/process_state.h"
#include "lockstep/launch/error_note.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/line_prefix.h"
#include "lockstep/launch/placement.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/verdict.h"

namespace lockstep::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLookForExits = std::chrono::milliseconds(10);  // without pidfds
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

}  // namespace

Attempt::Attempt(const AgentContext& context, const AttemptJob& job)
    : context_(context),
      options_(context.options),
      job_(job),
      ranks_(job.node.local_ranks),
      secret_file_(make_secret_file(job.secret)),
      board_(trace::CallBoard::create(std::max(1, ranks_))),
      traces_(options_.env, process_env()),
      supervisor_(ranks_, options_.grace),
      sentinel_(ranks_) {
  if (!options_.stdin_for_ranks) no_input_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (int rank = 0; rank < ranks_; ++rank) start_rank(rank);
  for (int rank = 0; rank < ranks_; ++rank) {
    sights_.push_back({.rank = job_.node.first_rank + rank,
                       .pid = workers_[static_cast<size_t>(rank)]->process().pid()});
  }
}

void Attempt::start_rank(int rank) {
  const EnvLookup env = process_env();
  AttemptPlan plan;
  plan.node = job_.node;
  plan.interface_chosen = options_.nodes && !options_.nodes->interface.empty();
  plan.restart_count = job_.restart_count;
  plan.max_restarts = options_.max_restarts;
  plan.run_id = options_.run_id;
  plan.role = options_.role;
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
    folder = context_.logs->rank_folder(job_.restart_count, rank);
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
    result.prefix = line_prefix(
        options_, {.role = options_.role, .rank = job_.node.first_rank + rank, .local_rank = rank},
        &console == &context_.err);
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
  workers_.push_back(std::make_unique<Worker>(
      std::move(start), stream(has_stdout(tee), has_stdout(redirect), context_.out, "stdout.log"),
      stream(has_stderr(tee), has_stderr(redirect), context_.err, "stderr.log"), rank,
      std::move(error_file), error_path));
  sentinel_.watch(rank, workers_.back()->process().pid());
}

AttemptResult Attempt::run() {
  watch();
  end_groups();
  for (const auto& worker : workers_) {
    worker->err().finish();
    worker->out().finish();
  }
  AttemptResult result;
  if (supervisor_.failure()) result.failure = describe(rank_to_blame());
  look_at_board();
  if (job_.peers == nullptr) {
    if (result.failure) judge(*result.failure, sights_);
  } else {
    AgentMessage ended;
    ended.kind = AgentMessage::Kind::kEnded;
    ended.failure = result.failure;
    ended.sights = sights_;
    job_.peers->tell(ended);
    wait_for_the_others();
  }
  context_.out.close_line();
  context_.err.close_line();
  write_rest();
  result.stop_signal = stop_signal_;
  for (const auto& [console, name] :
       {std::pair(&context_.out, "stdout"), std::pair(&context_.err, "stderr")}) {
    if (console->broken() && console->error() != EPIPE)
      result.output_failure = system_error(name, console->error()).what();
  }
  return result;
}

void Attempt::watch() {
  while (!supervisor_.done()) {
    wait_for_events();
    look_for_exits();
    obey(supervisor_.on_time(Clock::now()));
  }
}

void Attempt::wait_for_the_others() {
  while (!job_.peers->last_word()) wait_for_events();
  while (!job_.peers->left()) wait_for_events();
}

void Attempt::add_ranks(PollSet& polls) {
  const Time now = Clock::now();
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto& worker = workers_[static_cast<size_t>(rank)];
    for (OutputStream* stream : {&worker->err(), &worker->out()})
      polls.wake_at(stream->on_time(now));
    worker->err().watch(polls, [&worker] { worker->err().pump(Clock::now()); });
    worker->out().watch(polls, [&worker] { worker->pump_out(Clock::now()); });
    if (!supervisor_.running(rank)) continue;
    polls.add(worker->process().exit_fd(), POLLIN);
    if (worker->process().exit_fd() < 0) polls.wake_at(now + kLookForExits);
  }
}

void Attempt::add_consoles(PollSet& polls) {
  for (Console* console : {&context_.out, &context_.err}) {
    console->flush();
    console->watch(polls);
  }
}

void Attempt::wait_for_events(std::optional<Time> until) {
  PollSet polls;
  polls.wake_at(until);
  if (!supervisor_.done()) polls.wake_at(supervisor_.next_time());
  polls.add(context_.signals.fd(), POLLIN);
  add_ranks(polls);
  if (job_.peers != nullptr) job_.peers->watch(polls);
  add_consoles(polls);
  polls.wait();
  for (Console* console : {&context_.out, &context_.err}) {
    console->flush();
    if (!console->broken() || reader_lost_) continue;
    reader_lost_ = true;
    take_signal(SIGPIPE);
  }
  for (const int signal : context_.signals.take()) {
    take_signal(signal);
    ++signals_;
  }
  take_orders();
}

void Attempt::take_signal(int signal) {
  const bool stopping = supervisor_.stop_signal().has_value();
  obey(orders_of_signal(signal));
  if (!stopping) stop_signal_ = supervisor_.stop_signal();
  if (job_.peers == nullptr) return;
  AgentMessage message;
  message.kind = AgentMessage::Kind::kSignal;
  message.number = signal == SIGPIPE ? SIGTERM : signal;
  job_.peers->tell(message);
}

void Attempt::take_orders() {
  if (job_.peers == nullptr) return;
  while (const auto order = job_.peers->next_order()) {
    if (order->signal == 0) {
      look_at_ranks();
      write_last_traces("the job failed on another host");
    }
    obey(order->signal == 0 ? supervisor_.on_stop(Clock::now()) : orders_of_signal(order->signal));
  }
}

std::vector<SignalOrder> Attempt::orders_of_signal(int signal) {
  if (signal == SIGUSR1) {
    if (traces_.on() && !supervisor_.done()) write_traces(signal_name(signal));
  } else if (signal != SIGUSR2) {
    write_last_traces(signal_name(signal) + " to lockstep run");
  }
  std::vector<SignalOrder> orders = supervisor_.on_signal(signal, Clock::now());
  // Asking for traces must not end ranks that know nothing of the signal.
  if (signal == SIGUSR1 && traces_.on()) {
    std::erase_if(orders, [this](const SignalOrder& order) {
      return !trace::survives_signal(
          workers_[static_cast<size_t>(order.local_rank)]->process().pid(), order.signal);
    });
  }
  return orders;
}

void Attempt::write_traces(const std::string& reason) {
  const std::string line =
      traces_.write(board_, ranks_, job_.node.first_rank, job_.node.world_size, reason);
  context_.err.put(-2, {line}, "");
}

// What the ranks were in when the job began to end; what they do afterwards says nothing.
void Attempt::write_last_traces(const std::string& reason) {
  if (!traces_.on() || ranks_ == 0 || last_traces_written_) return;
  last_traces_written_ = true;
  write_traces(reason);
}

void Attempt::obey(const std::vector<SignalOrder>& orders) {
  for (const SignalOrder& order : orders) {
    Subprocess& process = workers_[static_cast<size_t>(order.local_rank)]->process();
    if (order.group) {
      process.signal_group(order.signal);
      // One that stands still could not obey.
      const RankSight& sight = sights_[static_cast<size_t>(order.local_rank)];
      if (!sight.stopped_by.empty()) process.signal_group(SIGCONT);
    } else {
      process.signal(order.signal);
    }
  }
}

// Looks at all ranks at once, so that of several that are dead the right one is blamed.
void Attempt::look_for_exits() {
  std::vector<RankExit> exits;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!supervisor_.running(rank)) continue;
    Subprocess& process = workers_[static_cast<size_t>(rank)]->process();
    const auto status = process.poll();
    if (!status) continue;
    exits.push_back({rank, *status, board_.read(rank).gave_up});
    exits_.push_back(exits.back());
    if (!process.group_alive()) sentinel_.forget(rank);
  }
  if (exits.empty()) return;
  const bool had_failed = supervisor_.failure().has_value();
  for (const RankExit& exit : exits) note_end(exit);
  if (std::any_of(exits.begin(), exits.end(), [](const RankExit& e) { return !e.status.ok(); }))
    look_at_ranks();
  obey(supervisor_.on_exits(exits, Clock::now()));
  if (had_failed || !supervisor_.failure()) return;
  const RankExit& failure = *supervisor_.failure();
  // Who exits with 2 was not in a call: it found its command line or input wrong.
  if (failure.status.exit_code != 2) {
    look_at_board();
    WorkerFailure so_far = describe(failure);
    judge(so_far, sights_);
    write_last_traces(describe_cause(so_far));
  }
  if (failure.status.exit_code == 2) show_complaint_once(failure.local_rank);
  if (job_.peers == nullptr) return;
  // For the report: what it wrote last.
  workers_[static_cast<size_t>(failure.local_rank)]->err().drain(Clock::now());
  AgentMessage failed;
  failed.kind = AgentMessage::Kind::kFailed;
  failed.failure = describe(failure);
  job_.peers->tell(failed);
}

// The others may be saying the same in the same words.
void Attempt::show_complaint_once(int complaining_rank) {
  OutputStream& complaining = workers_[static_cast<size_t>(complaining_rank)]->err();
  complaining.drain(Clock::now());
  for (int rank = 0; rank < ranks_; ++rank) {
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
    // This process is the reaper of its descendants (agent.cpp): orphans of the group end up here,
    // so ask for every group.
    if (worker->process().group_alive()) alive = true;
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
  const int signals_before = signals_;
  while (any_group_alive()) {
    wait_for_events(Clock::now() + kGroupPause);
    const bool hurry = signals_ > signals_before;
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
  while (true) {
    PollSet polls;
    add_consoles(polls);
    if (context_.out.backlog() + context_.err.backlog() == 0) return;
    polls.add(context_.signals.fd(), POLLIN);
    polls.wait();
    if (!context_.signals.take().empty()) return;
  }
}

void Attempt::look_at_ranks() {
  if (looked_) return;
  looked_ = true;
  handles_term_.resize(static_cast<size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank) {
    RankSight& sight = sights_[static_cast<size_t>(rank)];
    if (!sight.end.empty()) continue;
    handles_term_[static_cast<size_t>(rank)] = trace::survives_signal(sight.pid, SIGTERM);
    const auto in_call = static_cast<int>(board_.pid(rank));
    sight.stopped_by = stopped_by(sight.pid);
    // A rank may be a program that the worker started.
    if (sight.stopped_by.empty() && in_call != 0 && ::getpgid(in_call) == sight.pid)
      sight.stopped_by = stopped_by(in_call);
  }
}

// Of an end that the agent itself may have brought about nothing is to be learnt.
void Attempt::note_end(const RankExit& exit) {
  const auto rank = static_cast<size_t>(exit.local_rank);
  if (looked_ && !ended_by_itself(exit.status, supervisor_.killing(), handles_term_[rank])) return;
  RankSight& sight = sights_[rank];
  sight.end = describe_end(exit.status);
  sight.ended_badly = !exit.status.ok();
}

void Attempt::look_at_board() {
  for (int rank = 0; rank < ranks_; ++rank) {
    const trace::BoardRecord record = board_.read(rank);
    RankSight& sight = sights_[static_cast<size_t>(rank)];
    sight.last_collective = describe_call(record);
    sight.gave_up = record.gave_up;
    sight.late = record.late;
  }
}

// Who ended first; or, if it says itself that another rank's failure brought it about, that one.
RankExit Attempt::rank_to_blame() const {
  const auto note_of = [&](const RankExit& exit) {
    return error_note_of(workers_[static_cast<size_t>(exit.local_rank)]->error_text());
  };
  const RankExit& first = *supervisor_.failure();
  if (!note_of(first).consequence) return first;
  const auto cause = std::find_if(exits_.begin(), exits_.end(), [&](const RankExit& exit) {
    const ErrorNote note = note_of(exit);
    // What one that the agent has stopped says may be of that, unless it says all.
    const bool by_itself = sights_[static_cast<size_t>(exit.local_rank)].ended_badly;
    return (by_itself || (note.complete && !exit.status.ok())) && !note.message.empty() &&
           !note.consequence;
  });
  return cause == exits_.end() ? first : *cause;
}

WorkerFailure Attempt::describe(const RankExit& exit) const {
  Worker& worker = *workers_[static_cast<size_t>(exit.local_rank)];
  WorkerFailure failure;
  failure.rank = job_.node.first_rank + exit.local_rank;
  failure.local_rank = exit.local_rank;
  failure.pid = worker.process().pid();
  failure.exit_code = exit.status.exit_code;
  failure.signal = exit.status.signal;
  const trace::BoardRecord record = board_.read(exit.local_rank);
  failure.last_collective = describe_call(record);
  failure.gave_up = record.gave_up;
  failure.late = record.late;
  ErrorNote note = error_note_of(worker.error_text());
  failure.message = std::move(note.message);
  failure.complete = note.complete;
  failure.tail = worker.err().tail().lines();
  if (failure.tail.empty()) {
    failure.tail = worker.out().tail().lines();
    failure.tail_stream = "stdout";
  }
  return failure;
}

}  // namespace lockstep::launch
