#include "lockstep/launch/agent.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <optional>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/launch/attempt.h"
#include "lockstep/launch/failure_report.h"

namespace lockstep::launch {
namespace {

void check(const LaunchOptions& options) {
  const auto refuse = [](const std::string& what) { throw InvalidArgument(what); };
  if (options.command.empty()) refuse("no program to launch");
  if (options.nproc < 1)
    refuse(std::to_string(options.nproc) + " ranks asked for; at least 1 is needed");
  if (options.max_restarts < 0) refuse("max-restarts must not be negative");
  if (options.grace.count() < 0) refuse("grace must not be negative");
  if (options.threads_per_rank.value_or(1) < 1) refuse("threads per rank must be at least 1");
  if (options.master_port.value_or(0) < 0 || options.master_port.value_or(0) > 65535) {
    refuse("master port " + std::to_string(*options.master_port) + " is not from 0 to 65535");
  }
  for (const RedirectMap* map : {&options.redirects, &options.tee}) {
    for (const auto& [rank, streams] : *map) {
      if (rank >= options.nproc) {
        refuse("redirects or tee name local rank " + std::to_string(rank) +
               ", but there are only " + std::to_string(options.nproc) + " ranks");
      }
    }
  }
  for (const int rank : options.show_ranks) {
    if (rank < 0 || rank >= options.nproc)
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

}  // namespace

LaunchResult launch(const LaunchOptions& options) {
  check(options);
  if (options.program.empty())
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

  LaunchResult result;
  while (true) {
    AttemptResult attempt = Attempt(context, result.restarts).run();
    result.failure = std::move(attempt.failure);
    if (!result.failure) {
      result.exit_code = attempt.stop_signal ? 128 + *attempt.stop_signal : 0;
      return result;
    }
    result.exit_code = worth_a_restart(*result.failure) ? 1 : 2;
    if (result.restarts == options.max_restarts || result.exit_code == 2) break;
    ++result.restarts;
    if (!options.quiet) {
      write_all(STDERR_FILENO, "[lockstep] rank " + std::to_string(result.failure->rank) + " " +
                                   describe_end(*result.failure) + "; restart " +
                                   std::to_string(result.restarts) + " of " +
                                   std::to_string(options.max_restarts) + "\n");
    }
  }
  if (needs_report(options, *result.failure)) {
    write_all(STDERR_FILENO, format_failure(*result.failure, options.nproc));
  }
  return result;
}

}  // namespace lockstep::launch
