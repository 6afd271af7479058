// The part of Attempt that ends stopped ranks (SIGSTOP, a debugger): those for which the others
// wait in vain where ranks are replaced, and those without which they have ended where the job
// shrinks.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "lockstep/core/process_state.h"
#include "lockstep/launch/attempt.h"
#include "lockstep/launch/failure_report.h"

namespace lockstep::inline v0::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(250);
// A tool may stop a process for a moment.
constexpr auto kStandsStill = std::chrono::seconds(1);
// After the last other rank has failed: a rank that is stopped later is being inspected.
constexpr auto kStoppedByThen = std::chrono::seconds(2);
constexpr auto kSayAgain = std::chrono::seconds(1);
// Time for the awaited rank to be found stopped, here or on another host, which then reports it.
constexpr auto kAnswer = std::chrono::seconds(3);

}  // namespace

// Returns "" if the rank does not stand still. The rank may be a program that the worker started.
std::string Attempt::stands_still_by(int rank) const {
  const pid_t pid = workers_[static_cast<size_t>(rank)]->process().pid();
  const auto in_call = static_cast<pid_t>(board_.pid(rank));
  std::string by = stopped_by(pid);
  if (by.empty() && in_call != 0 && ::getpgid(in_call) == pid) by = stopped_by(in_call);
  return by;
}

bool Attempt::looks_for_still_ranks() const {
  if (supervisor_.stopping() || supervisor_.done()) return false;
  return supervisor_.replacements() > 0 || supervisor_.may_leave_behind();
}

// Here or on another host: a communicator broke because a rank was late or gone.
bool Attempt::any_gave_up() {
  bool here = false;
  for (int rank = 0; rank < ranks_; ++rank)
    here = here || (supervisor_.running(rank) && board_.read(rank).gave_up);
  if (here && Clock::now() >= say_that_others_wait_at_) {
    say_that_others_wait_at_ = Clock::now() + kSayAgain;
    say_about_still_ranks(AgentMessage::Kind::kWaitInVain);
  }
  return here || job_.peers.others_wait_in_vain();
}

void Attempt::say_about_still_ranks(AgentMessage::Kind kind) {
  AgentMessage message;
  message.kind = kind;
  job_.peers.tell(message);
}

void Attempt::end_still_ranks() {
  const Time now = Clock::now();
  if (!looks_for_still_ranks() || now < look_for_still_at_) return;
  look_for_still_at_ = now + kLook;
  const bool replaces = supervisor_.replacements() > 0;
  const bool in_vain = !replaces || any_gave_up();
  for (int rank = 0; rank < ranks_; ++rank) {
    Still& still = still_[static_cast<size_t>(rank)];
    const std::string by =
        in_vain && supervisor_.running(rank) ? stands_still_by(rank) : std::string();
    if (by.empty()) {
      still.since.reset();
    } else if (!still.since) {
      still.since = now;
    } else if (replaces && now >= *still.since + kStandsStill) {
      replace_still_rank(rank, by);
    }
  }
  if (!replaces) leave_still_ranks();
}

void Attempt::replace_still_rank(int rank, const std::string& by) {
  Still& still = still_[static_cast<size_t>(rank)];
  if (still.killed) return;
  still.killed = true;
  still_killed_at_ = Clock::now();
  const int number = job_.node.first_rank + rank;
  Subprocess& process = workers_[static_cast<size_t>(rank)]->process();
  context_.err.put(-2,
                   {still_rank_line(number, name_in_role(options_.roles, number), by, process.pid(),
                                    "others gave up waiting for it: it is killed")},
                   "");
  process.signal_group(SIGKILL);
  say_about_still_ranks(AgentMessage::Kind::kStoodStill);
}

// Where no other rank has finished the work, a stopped one may still do so: the user who inspects
// it, with a debugger or because all others have failed, lets it continue.
bool Attempt::may_go_on(int rank) const {
  if (supervisor_.any_ended_well()) return false;
  return *still_[static_cast<size_t>(rank)].since > left_at_ + kStoppedByThen ||
         stands_still_by(rank) == kDebugger;
}

// Once no other rank runs, whether the others succeeded or not: services are not waited for.
void Attempt::leave_still_ranks() {
  const Time now = Clock::now();
  std::vector<int> left;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!supervisor_.running(rank) || supervisor_.service(rank)) continue;
    const Still& still = still_[static_cast<size_t>(rank)];
    if (!still.since || now < *still.since + options_.grace || may_go_on(rank)) return;
    left.push_back(rank);
  }
  if (left.empty()) return;
  for (const int rank : left) {
    const int number = job_.node.first_rank + rank;
    context_.err.put(
        -2,
        {still_rank_line(number, name_in_role(options_.roles, number), stands_still_by(rank),
                         workers_[static_cast<size_t>(rank)]->process().pid(),
                         "the others have ended without it: it is ended")},
        "");
  }
  const std::vector<SignalOrder> orders = supervisor_.leave_behind(left, now);
  if (supervisor_.failure()) look_at_ranks();
  obey(orders);
  // Stopped processes obey only after SIGCONT.
  for (const int rank : left) workers_[static_cast<size_t>(rank)]->process().signal_group(SIGCONT);
  if (supervisor_.failure()) report_failure();
}

namespace {

bool only_waited(const RankExit& exit) {
  return exit.gave_up && !exit.status.ok();
}

}  // namespace

// Whether such a rank, here or on another host, was stopped during the life of `rank`.
bool Attempt::one_stood_still_for(int rank) const {
  const Time begun = still_[static_cast<size_t>(rank)].begun;
  const std::optional<Time> elsewhere = job_.peers.stood_still_elsewhere();
  return (still_killed_at_ && *still_killed_at_ >= begun) || (elsewhere && *elsewhere >= begun);
}

bool Attempt::any_stands_still() const {
  for (int rank = 0; rank < ranks_; ++rank)
    if (supervisor_.running(rank) && !stands_still_by(rank).empty()) return true;
  return false;
}

// Whether to look later at the end of a rank that only waited, since the rank that it waited for
// may be found stopped: here, unless it was stopped for a moment only, or on another host.
bool Attempt::waits_for_word(const RankExit& exit) {
  if (supervisor_.replacements() == 0 || supervisor_.stopping() || !only_waited(exit)) return false;
  if (one_stood_still_for(exit.local_rank)) return false;
  std::optional<Time>& until = still_[static_cast<size_t>(exit.local_rank)].waits_for_word;
  if (!until) {
    if (job_.node.nodes == 1 && !any_stands_still()) return false;
    until = Clock::now() + kAnswer;
    say_about_still_ranks(AgentMessage::Kind::kWaitInVain);
  }
  return Clock::now() < *until;
}

// Excuses ranks that gave up before the rank that they waited for was replaced: only that rank's
// replacement counts as a restart.
void Attempt::excuse_who_waited(std::vector<RankExit>& exits) const {
  if (supervisor_.replacements() == 0 || supervisor_.stopping()) return;
  for (RankExit& exit : exits)
    exit.excused = only_waited(exit) && one_stood_still_for(exit.local_rank);
}

}  // namespace lockstep::inline v0::launch
