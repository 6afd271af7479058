#include "lockstep/launch/attempt.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process_state.h"
#include "lockstep/launch/error_note.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/topology.h"
#include "lockstep/launch/verdict.h"

namespace lockstep::inline v0::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLookForExits = std::chrono::milliseconds(10);  // if there are no pidfds

// Puts the secret into a nameless file, which the ranks inherit: it appears neither on a command
// line nor in an environment.
UniqueFd make_secret_file(const Secret& secret) {
  UniqueFd file(::memfd_create("lockstep-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw system_error("memfd_create", errno);
  write_all(file.get(), secret.text());
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return file;
}

std::vector<RankPolicy> policies(const LaunchOptions& options, const NodePlan& node) {
  std::vector<RankPolicy> ranks(static_cast<size_t>(node.local_ranks));
  for (size_t i = 0; i < ranks.size() && !options.roles.empty(); ++i) {
    const int rank = node.first_rank + static_cast<int>(i);
    const Role& role = options.roles[place_in_role(options.roles, rank).role];
    ranks[i] = {.restarts = role.restarts, .service = role.service};
  }
  return ranks;
}

// Throws: LaunchError where the ranks do not fit this host.
std::vector<RankCpus> binding_of(const LaunchOptions& options, int ranks) {
  if (!options.binding.given || ranks == 0) return {};
  try {
    return bound_cpus(read_topology(allowed_cpus()), options.binding, ranks);
  } catch (const InvalidArgument& error) {
    throw LaunchError(error.what());
  }
}

}  // namespace

Attempt::Attempt(const AgentContext& context, const AttemptJob& job)
    : context_(context),
      options_(context.options),
      job_(job),
      ranks_(job.node.local_ranks),
      bound_(binding_of(options_, ranks_)),
      secret_file_(make_secret_file(job.secret)),
      board_(trace::CallBoard::create(std::max(1, ranks_))),
      traces_(options_.env, process_env()),
      supervisor_(policies(options_, job_.node), {options_.grace, options_.stop_grace},
                  job_.node.nodes == 1,
                  on_failure_of(options_) == OnFailure::kReplace ? options_.max_restarts : 0,
                  on_failure_of(options_) == OnFailure::kShrink),
      sentinel_(ranks_ + options_.spare_ranks, !job_.peers.others_sleep_too()),
      strays_("LOCKSTEP_STORE=" + job_.node.store.to_string()),
      past_end_(static_cast<size_t>(ranks_)),
      still_(static_cast<size_t>(ranks_)) {
  if (options_.simulate_failures) {
    // The drill's moments differ in every generation and on every host.
    FailureDrill drill = *options_.simulate_failures;
    drill.seed = drill.seed * 1'000'003 + static_cast<uint64_t>(job_.node.generation) * 1009 +
                 static_cast<uint64_t>(job_.node.node_rank);
    failures_.emplace(drill, Clock::now());
  }
  if (!options_.stdin_for_ranks || options_.spare_ranks > 0)
    no_input_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (int rank = 0; rank < ranks_; ++rank) workers_.push_back(start_rank(rank, streams_of(rank)));
  for (int rank = 0; rank < ranks_; ++rank) {
    sights_.push_back({.rank = job_.node.first_rank + rank,
                       .pid = workers_[static_cast<size_t>(rank)]->process().pid()});
  }
}

AttemptResult Attempt::run() {
  keep_spares();
  watch();
  end_groups();
  for (const auto& worker : workers_) {
    worker->err().finish();
    worker->out().finish();
  }
  AttemptResult result;
  AgentMessage ended;
  ended.kind = AgentMessage::Kind::kEnded;
  if (supervisor_.failure()) ended.failure = describe(rank_to_blame());
  result.failed = ended.failure.has_value();
  look_at_board();
  ended.sights = sights_;
  ended.finished = !supervisor_.stopping() && !result.failed;
  ended.well = supervisor_.all_ended_well();
  say_lost_output();
  ended.lost_output = context_.lost.bytes > 0 && !options_.allow_lost_logs;
  job_.peers.tell(ended);
  wait_for_the_others();
  context_.out.close_line();
  context_.err.close_line();
  // Does not wait for a slow reader before the next generation, because the other agents would miss
  // this one.
  result.hurried = stop_signal_ || supervisor_.stop_signal();
  if (job_.peers.last_word() || stop_signal_)
    result.hurried =
        !write_rest(context_.out, context_.err, context_.signals, result.hurried) || result.hurried;
  result.stop_signal = stop_signal_;
  result.was_stopping = stop_signal_ && !supervisor_.stop_signal();
  for (const auto& [console, name] :
       {std::pair(&context_.out, "stdout"), std::pair(&context_.err, "stderr")}) {
    if (console->broken() && console->error() != EPIPE)
      result.output_failure = system_error(name, console->error()).what();
  }
  return result;
}

void Attempt::watch() {
  while (!supervisor_.done()) {
    say_if_served();
    wait_for_events();
    look_for_exits();
    look_for_the_end();
    look_for_leave();
    obey(supervisor_.on_time(Clock::now()));
    simulate_failures();
    end_still_ranks();
    for (const int rank : supervisor_.take_restarts(Clock::now())) start_again(rank);
    tend_spares();
  }
  if (spares_) spares_->dismiss();
}

void Attempt::simulate_failures() {
  if (!failures_) return;
  // Once a rank has finished, another one's successor could meet no rank.
  bool over = supervisor_.failure() || supervisor_.stop_signal();
  std::vector<int> running;
  for (int rank = 0; rank < ranks_; ++rank) {
    over = over || board_.presence(rank) != trace::CallBoard::Presence::kAtWork;
    if (supervisor_.running(rank)) running.push_back(rank);
  }
  if (over) running.clear();
  const std::optional<int> hit = failures_->take(running, Clock::now());
  if (!hit) return;
  context_.err.put(-2,
                   {"[lockstep] simulated failure: rank " +
                    std::to_string(job_.node.first_rank + *hit) + " is killed\n"},
                   "");
  obey({{*hit, SIGKILL, true}});
}

void Attempt::wait_for_the_others() {
  int generation = job_.node.generation;
  while (!job_.peers.last_word() && !leaves_ && job_.peers.lost().empty()) {
    if (const int newest = job_.peers.plan()->generation; newest != generation) {
      if (!stop_signal_) break;
      // The generation began before the signal was known, and gets no ranks here.
      generation = newest;
      AgentMessage ended;
      ended.kind = AgentMessage::Kind::kEnded;
      job_.peers.tell(ended);
      continue;
    }
    wait_for_events();
  }
  while ((leaves_ || job_.peers.last_word()) && !job_.peers.left()) wait_for_events();
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
    // The rank has ended, but its end has not been examined yet.
    if (const auto until = still_[static_cast<size_t>(rank)].waits_for_word) {
      polls.wake_at(std::max(now + kLookForExits, *until));
      continue;
    }
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
  if (failures_ && !supervisor_.done()) polls.wake_at(failures_->next_time());
  if (!supervisor_.done()) polls.wake_at(leaves_by_);
  polls.add(context_.signals.fd(), POLLIN);
  add_ranks(polls);
  if (looks_for_still_ranks()) polls.wake_at(look_for_still_at_);
  if (spares_) spares_->watch(polls, Clock::now(), spares_needed());
  job_.peers.watch(polls);
  hold_ranks();
  if (job_.peers.take_news()) polls.wake_at(Clock::now());
  add_consoles(polls);
  polls.wait();
  hold_ranks();
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
  say_lost_output();
  take_orders();
}

void Attempt::say_lost_output() {
  if (said_lost_output_ || context_.lost.error == 0) return;
  said_lost_output_ = true;
  context_.err.put(-2, {lost_output_line(context_.lost.file, context_.lost.error)}, "");
}

void Attempt::say_if_served() {
  if (said_served_ || !supervisor_.served()) return;
  said_served_ = true;
  AgentMessage served;
  served.kind = AgentMessage::Kind::kServed;
  job_.peers.tell(served);
}

// Looks at all ranks at once, so that the right one of several dead ranks is blamed.
void Attempt::look_for_exits() {
  std::vector<RankExit> exits;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!supervisor_.running(rank)) continue;
    Subprocess& process = workers_[static_cast<size_t>(rank)]->process();
    const auto status = process.poll();
    if (!status) continue;
    RankExit exit{rank, *status, board_.read(rank).gave_up};
    exit.past_end = board_.presence(rank) == trace::CallBoard::Presence::kAllFinished;
    past_end_[static_cast<size_t>(rank)] = exit.past_end;
    // Other signals are its own error, and so is one that gave up waiting for others.
    exit.done =
        exit.past_end && status->signal == SIGKILL && !exit.gave_up && !supervisor_.stopping();
    if (waits_for_word(exit)) continue;
    exits.push_back(exit);
    if (exit.well()) board_.set_presence(rank, trace::CallBoard::Presence::kEnded);
    exits_.push_back(exits.back());
    if (!process.group_alive()) sentinel_.forget(rank);
  }
  if (exits.empty()) return;
  excuse_who_waited(exits);
  const bool had_failed = supervisor_.failure().has_value();
  const int left_before = supervisor_.left_behind();
  for (const RankExit& exit : exits) {
    note_end(exit);
    note_device(exit);
  }
  const std::vector<SignalOrder> orders = supervisor_.on_exits(exits, Clock::now());
  const bool fails_now = !had_failed && supervisor_.failure();
  const bool left_behind = supervisor_.left_behind() > left_before;
  if (left_behind) left_at_ = Clock::now();
  bool ends = false;
  for (const RankExit& exit : exits) {
    if (exit.done) say_end(exit, false);
    if (exit.well()) continue;
    const bool waits = supervisor_.waits(exit.local_rank);
    ends = ends || !(waits || left_behind);
    // Its children have no rank to serve, and the next process must find their ports free.
    if (waits || left_behind)
      workers_[static_cast<size_t>(exit.local_rank)]->process().signal_group(SIGKILL);
    const bool restarts_are_left =
        exit.status.exit_code != 2 && supervisor_.restarts_are_left(exit.local_rank);
    if (waits || left_behind || (fails_now && restarts_are_left)) say_end(exit, left_behind);
  }
  if (ends) look_at_ranks();
  obey(orders);
  if (!had_failed && supervisor_.failure()) report_failure();
}

// A rank that has ended does not say so any more.
void Attempt::look_for_the_end() {
  using Presence = trace::CallBoard::Presence;
  bool all = ranks_ > 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Presence presence = board_.presence(rank);
    if (presence != Presence::kEnded)
      past_end_[static_cast<size_t>(rank)] = presence == Presence::kAllFinished;
    all = all && past_end_[static_cast<size_t>(rank)];
  }
  job_.peers.set_past_end(all);
}

// Reports to this agent's output, the traces and the other agents.
void Attempt::report_failure() {
  const RankExit& failure = *supervisor_.failure();
  // A rank that exits with 2 was not in a call: it rejected its command line or input.
  if (failure.status.exit_code != 2) {
    look_at_board();
    WorkerFailure so_far = describe(failure);
    judge(so_far, sights_);
    write_last_traces(describe_cause(so_far));
  }
  if (failure.status.exit_code == 2) show_complaint_once(failure.local_rank);
  // For the report: its last output.
  workers_[static_cast<size_t>(failure.local_rank)]->err().drain(Clock::now());
  AgentMessage failed;
  failed.kind = AgentMessage::Kind::kFailed;
  failed.failure = describe(failure);
  job_.peers.tell(failed);
}

// The other ranks may be printing the same text.
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

void Attempt::look_at_ranks() {
  if (looked_) return;
  looked_ = true;
  handles_term_.resize(static_cast<size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank) {
    RankSight& sight = sights_[static_cast<size_t>(rank)];
    if (!sight.end.empty()) continue;
    handles_term_[static_cast<size_t>(rank)] = trace::survives_signal(sight.pid, SIGTERM);
    sight.stopped_by = stands_still_by(rank);
  }
}

// An end that the agent itself may have caused says nothing.
void Attempt::note_end(const RankExit& exit) {
  const auto rank = static_cast<size_t>(exit.local_rank);
  if (looked_ && !ended_by_itself(exit.status, supervisor_.killing(), handles_term_[rank])) return;
  RankSight& sight = sights_[rank];
  sight.end = describe_end(exit.status);
  sight.ended_badly = !exit.status.ok();
}

// The rank's next process, in whichever attempt, takes another device.
void Attempt::note_device(const RankExit& exit) {
  if (exit.well()) return;
  const Worker& worker = *workers_[static_cast<size_t>(exit.local_rank)];
  const ErrorNote note = error_note_of(worker.error_text());
  if (note.device.empty()) return;
  context_.devices.add(exit.local_rank);
  const int rank = job_.node.first_rank + exit.local_rank;
  context_.err.put(
      -2, {failed_device_line(rank, name_in_role(options_.roles, rank), note.device, note.message)},
      "");
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

// The rank that ended first; or, if it reports another rank's failure as the reason, or gave up
// waiting, that other one.
RankExit Attempt::rank_to_blame() const {
  const auto note_of = [&](const RankExit& exit) {
    return error_note_of(workers_[static_cast<size_t>(exit.local_rank)]->error_text());
  };
  const RankExit& first = *supervisor_.failure();
  const bool reports = note_of(first).consequence;
  if (!reports && !first.gave_up) return first;
  const auto cause = std::find_if(exits_.begin(), exits_.end(), [&](const RankExit& exit) {
    const ErrorNote note = note_of(exit);
    if (note.consequence || exit.gave_up) return false;
    // The message of a rank that the agent has stopped may be a consequence, unless it is complete.
    const bool by_itself = sights_[static_cast<size_t>(exit.local_rank)].ended_badly;
    const bool told = reports && !note.message.empty();
    // A killed rank leaves no message, and its peers may see its connections end, and end
    // themselves, before the kernel says that it has ended.
    return by_itself ? told || exit.status.signal != 0 : told && note.complete && !exit.status.ok();
  });
  return cause == exits_.end() ? first : *cause;
}

WorkerFailure Attempt::describe(const RankExit& exit) const {
  Worker& worker = *workers_[static_cast<size_t>(exit.local_rank)];
  WorkerFailure failure;
  failure.rank = job_.node.first_rank + exit.local_rank;
  failure.role = name_in_role(options_.roles, failure.rank);
  failure.restarts = supervisor_.restarts(exit.local_rank);
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

}  // namespace lockstep::inline v0::launch
