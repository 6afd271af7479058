#include "lockstep/launch/agent.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <optional>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/launch/attempt.h"
#include "lockstep/launch/failure_report.h"
#include "lockstep/launch/master_port.h"
#include "lockstep/launch/peers.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::launch {
namespace {

void check(const LaunchOptions& options) {
  const auto refuse = [](const std::string& what) { throw InvalidArgument(what); };
  if (options.command.empty()) refuse("no program to launch");
  const bool starts_others = options.nodes && !options.nodes->remotes.empty();
  if (options.nproc < (starts_others ? 0 : 1))
    refuse(std::to_string(options.nproc) + " ranks asked for; at least 1 is needed");
  if (options.nproc > kMostRanksOfAHost)
    refuse(std::to_string(options.nproc) + " ranks asked for on one host; give at most " +
           std::to_string(kMostRanksOfAHost));
  if (options.max_restarts < 0) refuse("max-restarts must not be negative");
  if (options.grace.count() < 0) refuse("grace must not be negative");
  if (options.threads_per_rank.value_or(1) < 1) refuse("threads per rank must be at least 1");
  if (options.master_port.value_or(0) < 0 || options.master_port.value_or(0) > 65535) {
    refuse("master port " + std::to_string(*options.master_port) + " is not from 0 to 65535");
  }
  if (options.nodes && options.max_restarts > 0)
    refuse("ranks can be restarted on one host only; with several, start the job again");
  check_roles(options.roles);
  if (!options.roles.empty() && !options.nodes && rank_count(options.roles) != options.nproc)
    refuse(std::to_string(options.nproc) + " ranks asked for, but the roles have " +
           std::to_string(rank_count(options.roles)) + " (" + role_ranges(options.roles) + ")");
  for (const Role& role : options.roles) {
    if (role.restarts > 0 && options.max_restarts > 0)
      refuse("max-restarts starts all ranks anew, restarts of role '" + role.name +
             "' one alone; give one of them");
  }
  for (const RedirectMap* map : {&options.redirects, &options.tee}) {
    for (const auto& [rank, streams] : *map) {
      if (rank >= options.nproc && !options.nodes) {
        refuse("redirects or tee name local rank " + std::to_string(rank) +
               ", but there are only " + std::to_string(options.nproc) + " ranks");
      }
    }
  }
  for (const int rank : options.show_ranks) {
    if (rank < 0 || (rank >= options.nproc && !options.nodes))
      refuse("there is no local rank " + std::to_string(rank) + " to show");
  }
}

bool writes_files(const RedirectMap& map) {
  for (const auto& [rank, streams] : map) {
    if (streams != Redirect::kNone) return true;
  }
  return false;
}

// While it lives, orphaned descendants become children of this process, so that it can reap them.
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

// A wrong option or input fails the same way each time.
bool worth_a_restart(const WorkerFailure& failure) {
  return failure.signal != 0 || failure.exit_code != 2;
}

// The program has told what was wrong itself when it exits with 2, provided that it could be seen.
bool needs_report(const LaunchOptions& options, const WorkerFailure& failure) {
  if (options.quiet) return false;
  if (failure.signal != 0 || failure.exit_code != 2) return true;
  const Redirect redirect = redirect_of(options.redirects, failure.local_rank);
  const bool shown = options.show_ranks.empty() || options.show_ranks.contains(failure.local_rank);
  return !shown || has_stderr(redirect) || failure.tail_stream != "stderr" || failure.tail.empty();
}

// Whoever reads the output must not take a part for the whole.
bool output_failed(const AttemptResult& attempt) {
  if (attempt.output_failure.empty()) return false;
  write_all(STDERR_FILENO, "[lockstep] the ranks' output cannot be written, " +
                               attempt.output_failure + "; make room or send it elsewhere\n");
  return true;
}

LaunchResult run_on_one_host(const AgentContext& context) {
  const LaunchOptions& options = context.options;
  LaunchResult result;
  while (true) {
    // Every attempt has a store, a secret and a port of its own.
    const Secret secret = Secret::generate();
    const TcpStoreServer store({"127.0.0.1", 0}, secret);
    const PortReservation master_port(options.master_port);
    NodePlan node;
    node.local_ranks = node.world_size = options.nproc;
    node.master = {options.master_addr, master_port.port()};
    node.store = store.address();
    AttemptResult attempt =
        Attempt(context, {.node = node, .secret = secret, .restart_count = result.restarts}).run();
    result.failure = std::move(attempt.failure);
    if (output_failed(attempt)) {
      result.exit_code = 1;
      return result;
    }
    if (!result.failure) {
      result.exit_code = attempt.stop_signal ? 128 + *attempt.stop_signal : 0;
      return result;
    }
    result.exit_code = worth_a_restart(*result.failure) ? 1 : 2;
    if (result.restarts == options.max_restarts || result.exit_code == 2) break;
    ++result.restarts;
    if (!options.quiet) {
      write_all(STDERR_FILENO, "[lockstep] " + describe_cause(*result.failure) + "; restart " +
                                   std::to_string(result.restarts) + " of " +
                                   std::to_string(options.max_restarts) + "\n");
    }
  }
  if (needs_report(options, *result.failure)) {
    write_all(STDERR_FILENO, format_failure(*result.failure, options.nproc));
  }
  return result;
}

// Whether the report of the whole job is to be printed here: not where the failing rank's own
// complaint was.
bool needs_report(const LaunchOptions& options, const AgentMessage& last_word, bool failed_here) {
  if (options.quiet || last_word.text.empty()) return false;
  if (last_word.exit_code != 2 || !last_word.failure) return true;
  const bool others_output_is_here = !options.nodes->remotes.empty();
  return failed_here || others_output_is_here ? needs_report(options, *last_word.failure) : true;
}

// The ranks of this host cannot be started: the others are told, and heard to the end.
void give_up(Peers& peers, const std::string& why, std::chrono::milliseconds grace) {
  AgentMessage message;
  message.kind = AgentMessage::Kind::kFailed;
  message.text = why;
  message.exit_code = 2;
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

LaunchResult run_on_several_hosts(const AgentContext& context) {
  const LaunchOptions& options = context.options;
  Joined joined = join_peers(options, context.signals, context.out, context.err);
  LaunchResult result;
  if (joined.signal != 0) {
    result.exit_code = 128 + joined.signal;
    return result;
  }
  std::optional<Attempt> ranks;
  try {
    const int ranks_of_roles = rank_count(options.roles), world = joined.peers->plan()->world_size;
    if (!options.roles.empty() && ranks_of_roles != world)
      throw InvalidArgument("the hosts have " + std::to_string(world) +
                            " ranks, but the roles have " + std::to_string(ranks_of_roles));
    ranks.emplace(context, AttemptJob{.node = *joined.peers->plan(),
                                      .secret = options.nodes->secret,
                                      .peers = joined.peers.get()});
  } catch (const Error& error) {
    give_up(*joined.peers, error.what(), options.grace);
    throw;
  }
  const AttemptResult attempt = ranks->run();
  const AgentMessage& last_word = *joined.peers->last_word();
  result.failure = last_word.failure;
  result.exit_code = attempt.stop_signal ? 128 + *attempt.stop_signal : last_word.exit_code;
  if (output_failed(attempt)) {
    result.exit_code = 1;
    return result;
  }
  if (!attempt.stop_signal && needs_report(options, last_word, attempt.failure.has_value()))
    write_all(STDERR_FILENO, last_word.text);
  return result;
}

}  // namespace

LaunchResult launch(const LaunchOptions& options) {
  check(options);
  if (options.program.empty() && options.nproc > 0)
    find_program(options.command.front());  // throws before anything is made
  std::optional<LogFolder> logs;
  if (!options.log_dir.empty() || writes_files(options.redirects) || writes_files(options.tee)) {
    logs.emplace(options.log_dir, options.run_id);
    if (options.log_dir.empty() && !options.quiet) {
      write_all(STDERR_FILENO, "[lockstep] log files: " + logs->path().string() + "\n");
    }
  }

  const DescendantReaper reaper;
  SignalPipe signals;
  Console out(STDOUT_FILENO), err(STDERR_FILENO);
  const AgentContext context{options, logs ? &*logs : nullptr, signals, out, err};

  return options.nodes ? run_on_several_hosts(context) : run_on_one_host(context);
}

}  // namespace lockstep::launch
