#include "lockstep/launch/agent.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <optional>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/log_never_waits.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/standard_streams.h"
#include "lockstep/launch/alone_agent.h"
#include "lockstep/launch/attempt.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/peers.h"

namespace lockstep::inline v0::launch {
namespace {

bool writes_files(const RedirectMap& map) {
  for (const auto& [rank, streams] : map) {
    if (streams != Redirect::kNone) return true;
  }
  return false;
}

// During its lifetime, orphaned descendants become children of this process, so that it can reap
// them.
class DescendantReaper {
 public:
  DescendantReaper() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &former_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~DescendantReaper() { ::prctl(PR_SET_CHILD_SUBREAPER, former_); }
  DescendantReaper(const DescendantReaper&) = delete;
  DescendantReaper& operator=(const DescendantReaper&) = delete;

 private:
  int former_ = 0;
};

// The program has reported the error itself when it exits with 2, provided that its output was
// shown.
bool needs_report(const LaunchOptions& options, const WorkerFailure& failure) {
  if (options.quiet) return false;
  if (failure.signal != 0 || failure.exit_code != 2) return true;
  const Redirect redirect = redirect_of(options.redirects, failure.local_rank);
  const bool shown = options.show_ranks.empty() || options.show_ranks.contains(failure.local_rank);
  return !shown || has_stderr(redirect) || failure.tail_stream != "stderr" || failure.tail.empty();
}

// Follows all output of the ranks. `hurried`: its reader may have stopped reading.
void say_at_the_end(const AgentContext& context, const std::string& text, bool hurried) {
  context.err.put(-2, {text}, "");
  write_rest(context.out, context.err, context.signals, hurried);
}

// A reader of the output must not take a part for the whole.
bool output_failed(const AgentContext& context, const AttemptResult& attempt) {
  if (attempt.output_failure.empty()) return false;
  say_at_the_end(context,
                 "[lockstep] the ranks' output cannot be written, " + attempt.output_failure +
                     "; make room or send it elsewhere\n",
                 attempt.hurried);
  return true;
}

// Whether the report of the whole job is printed here: not if the failing rank's own complaint was
// printed here.
bool needs_report(const LaunchOptions& options, const AgentMessage& last_word, bool failed_here) {
  if (options.quiet || last_word.text.empty()) return false;
  if (last_word.exit_code != 2 || !last_word.failure) return true;
  const bool others_output_is_here = options.nodes && !options.nodes->remotes.empty();
  return failed_here || others_output_is_here ? needs_report(options, *last_word.failure) : true;
}

// Whether the error is a user's mistake, which would occur again the next time.
bool is_mistake(const Error& error) {
  return dynamic_cast<const InvalidArgument*>(&error) != nullptr ||
         dynamic_cast<const LaunchError*>(&error) != nullptr;
}

// The ranks of this host cannot be started: notifies the other agents, and reads their messages to
// the end.
void give_up(Peers& peers, const Error& why, std::chrono::milliseconds grace) {
  AgentMessage message;
  message.kind = AgentMessage::Kind::kFailed;
  message.text = why.what();
  message.exit_code = is_mistake(why) ? 2 : 1;
  peers.tell(message);
  message.kind = AgentMessage::Kind::kEnded;
  peers.tell(message);
  const Deadline deadline = Deadline::after(grace + std::chrono::seconds(10));
  while (!(peers.last_word() && peers.left()) && !deadline.expired()) {
    PollSet polls;
    polls.wake_at(deadline.time());
    peers.watch(polls);
    polls.wait();
  }
}

void check_world(const LaunchOptions& options, const NodePlan& plan) {
  const int ranks_of_roles = rank_count(options.roles);
  if (options.roles.empty() || ranks_of_roles == plan.world_size) return;
  throw InvalidArgument("the hosts have " + std::to_string(plan.world_size) +
                        " ranks, but the roles have " + std::to_string(ranks_of_roles));
}

// Reports how the job ended on all hosts, and here.
void conclude(const AgentContext& context, const AgentMessage& last_word, bool failed_here,
              bool hurried, LaunchResult& result) {
  result.failure = last_word.failure;
  result.exit_code = last_word.exit_code;
  if (needs_report(context.options, last_word, failed_here))
    say_at_the_end(context, last_word.text, hurried);
}

LaunchResult run(const AgentContext& context) {
  const LaunchOptions& options = context.options;
  LaunchResult result;
  Former former{.agent = to_hex(random_bytes(8))};
  std::unique_ptr<EtcdElection> election;
  if (options.nodes && options.nodes->server == NodesOptions::Server::kElected)
    election = std::make_unique<EtcdElection>(options.nodes->etcd, options.run_id,
                                              options.nodes->silence, options.nodes->join_timeout);
  std::unique_ptr<Peers> peers;
  while (true) {
    if (!peers) {
      Joined joined;
      if (options.nodes) {
        joined =
            join_peers(options, former, election.get(), context.signals, context.out, context.err);
      } else {
        joined.peers = std::make_unique<AloneAgent>(options, context.err);
      }
      if (joined.signal != 0) {
        write_rest(context.out, context.err, context.signals, true);
        result.exit_code = 128 + joined.signal;
        return result;
      }
      peers = std::move(joined.peers);
    }
    if (peers->last_word()) {
      // This host was not needed.
      const bool written = write_rest(context.out, context.err, context.signals, false);
      conclude(context, *peers->last_word(), false, !written, result);
      return result;
    }
    const NodePlan plan = *peers->plan();
    std::optional<Attempt> ranks;
    try {
      check_world(options, plan);
      ranks.emplace(context, AttemptJob{.node = plan, .secret = peers->secret(), .peers = *peers});
    } catch (const Error& error) {
      give_up(*peers, error, options.grace);
      throw;
    }
    const AttemptResult attempt = ranks->run();
    ranks.reset();
    result.restarts = plan.restarts;
    result.generation = plan.generation;
    if (output_failed(context, attempt)) {
      result.exit_code = 1;
      return result;
    }
    const std::optional<AgentMessage>& last_word = peers->last_word();
    const bool stopped_well =
        attempt.stop_signal == SIGTERM && last_word && last_word->exit_code == 0;
    if (attempt.stop_signal && !stopped_well && !(attempt.was_stopping && last_word)) {
      if (last_word) result.failure = last_word->failure;
      result.exit_code = 128 + *attempt.stop_signal;
      return result;
    }
    if (last_word) {
      conclude(context, *last_word, attempt.failed, attempt.hurried, result);
      // A signal that arrived while ranks were being stopped only hastens a failed job's end.
      if (attempt.stop_signal && result.exit_code != 0 && !result.failure)
        result.exit_code = 128 + *attempt.stop_signal;
      return result;
    }
    if (peers->lost().empty()) continue;
    former.seen = peers->seen();
    former.plan = plan;
    former.known = peers->known();
    former.lost = peers->lost();
    former.ran_with = peers->leads() ? 0 : plan.nodes;
    former.ranks_until = peers->lost_ranks_until();
    peers.reset();
  }
}

}  // namespace

LaunchResult launch(const LaunchOptions& options) {
  open_standard_streams();
  check(options);
  // Throws before anything is created.
  if (options.program.empty() && options.nproc > 0) find_program(options.command.front());
  std::optional<LogFolder> logs;
  if (!options.log_dir.empty() || writes_files(options.redirects) || writes_files(options.tee)) {
    logs.emplace(options.log_dir, options.run_id);
    if (options.log_dir.empty() && !options.quiet) {
      write_all(STDERR_FILENO, "[lockstep] log files: " + logs->path().string() + "\n");
    }
  }

  const LogNeverWaits for_no_reader;  // nor do the threads that serve the ranks
  const DescendantReaper reaper;
  SignalPipe signals;
  Console out(STDOUT_FILENO), err(STDERR_FILENO);
  LostOutput lost;
  FailedDevices devices;
  const AgentContext context{options, logs ? &*logs : nullptr, signals, out, err, lost, devices};

  try {
    const LaunchResult result = run(context);
    if (lost.bytes > 0)
      say_at_the_end(context, lost_bytes_line(lost.bytes, options.allow_lost_logs),
                     result.exit_code > 128);
    return result;
  } catch (...) {
    // Earlier generations may have left output.
    write_rest(out, err, signals, false);
    throw;
  }
}

}  // namespace lockstep::inline v0::launch
