// Supervisor: the agent's decisions when a rank ends, a signal arrives, or time passes. Pure: it is
// told the time and returns the signals to send.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::launch {

struct RankExit {
  int local_rank = 0;
  ExitStatus status;
  bool gave_up = false;  // it only waited for others
  // Because of a stopped rank, which is replaced: the replacement of this rank is not counted.
  bool excused = false;
  // It was killed (SIGKILL) after all ranks had passed the last meeting of their recovery.
  bool done = false;
  bool past_end = false;  // it had passed that meeting, however it ended

  bool well() const { return status.ok() || done; }
};

struct SignalOrder {
  int local_rank = 0;
  int signal = 0;
  bool group = true;  // to the rank's whole process group, or to its first process alone

  bool operator==(const SignalOrder&) const = default;
};

// The rank to blame among failures that were found at the same moment: a rank that died of a signal
// before one that exited (a dead peer makes the others exit with errors), an abort after other
// signals (an uncaught error ends so), a rank that only waited for others after all that did not,
// then the lowest rank. `exits` has at least one failure.
RankExit choose_first_failure(std::span<const RankExit> exits);

// The consequences of a rank's failure, and its role in the job's end (roles.h).
struct RankPolicy {
  int restarts = 0;      // maximum number of restarts alone; none when it exited with 2
  bool service = false;  // it is stopped once all ranks that are no services have succeeded
};

// Between SIGTERM and SIGKILL.
struct Grace {
  template <typename Rep, typename Period>
  Grace(std::chrono::duration<Rep, Period> always) : after_failure(always), when_asked(always) {}
  Grace(std::chrono::milliseconds failure, std::chrono::milliseconds asked)
      : after_failure(failure), when_asked(asked) {}

  std::chrono::milliseconds after_failure;
  std::chrono::milliseconds when_asked;  // nothing has failed: ranks may save their work
};

// The pause before a rank's n-th restart, from 1: 100 ms, doubling each time, at most 5 s.
std::chrono::milliseconds restart_pause(int n);
// A process that ends sooner than this is expected to do so again.
inline constexpr std::chrono::seconds kQuickEnd{1};

class Supervisor {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Supervisor(int ranks, Grace grace);
  // `alone`: the job has no ranks on other hosts. Otherwise on_stop() must say when services end.
  // `replacements`: maximum number of replacements of failed ranks while the others continue. None
  // once a rank has succeeded, since a newcomer could not meet it. A replacement starts at once,
  // except for a rank whose processes end quickly, which has a pause of restart_pause() for each in
  // a row. `shrinks`: the others continue without a rank that fails, as long as there are any and
  // none has succeeded before; not where it exited with 2.
  Supervisor(std::vector<RankPolicy> ranks, Grace grace, bool alone = true, int replacements = 0,
             bool shrinks = false);

  // All ends found in one look. RankExit::well() is a success. After a failure the others stop:
  // SIGTERM, and SIGKILL after the grace; but a rank that has restarts left waits for the next one
  // instead. Services stop in the same way when no ranks are left to serve; their exit codes then
  // do not matter.
  std::vector<SignalOrder> on_exits(std::span<const RankExit> exits, Time now);
  // A signal to the agent. SIGUSR1 and SIGUSR2 are passed on. Any other stops the job: it is passed
  // on, and SIGKILL follows after the grace (SIGTERM asks), or at once after a second signal. The
  // user who ends a job on several hosts may signal all agents: SIGTERM to an agent whose ranks
  // were asked already has no effect, nor has one that is `relayed` from another host; SIGKILL is
  // relayed where that host got a second signal.
  std::vector<SignalOrder> on_signal(int signal, Time now, bool relayed = false);
  // A signal that asks to stop arrived and is not passed on yet: the next one is the second.
  void hear_signal() { heard_signal_ = true; }
  // Ranks failed on another host, or its agent did: those here stop, as after a failure of their
  // own. Or only services are left on all hosts. `asked`: nothing failed, and another generation
  // follows.
  std::vector<SignalOrder> on_stop(Time now, bool asked = false);
  std::vector<SignalOrder> on_time(Time now);
  // For a job that shrinks: ends these ranks, with SIGKILL after the grace, since all others have
  // ended without them. Where any of the others has succeeded, the exit codes of these do not
  // matter. Otherwise the job has failed, with the first failure of the others.
  std::vector<SignalOrder> leave_behind(std::span<const int> ranks, Time now);
  // Where the job shrinks: whether a rank has ended, so that the ranks that still run may be ones
  // that the others left behind.
  bool may_leave_behind() const {
    return shrinks_ && (any_ended_well_ || !left_.empty()) && phase_ == Phase::kRunning &&
           !leave_behind_by_;
  }
  bool any_ended_well() const { return any_ended_well_; }  // of the ranks that are no services
  // The ranks to restart now; they count as running.
  std::vector<int> take_restarts(Time now);
  // When on_time() or take_restarts() has work.
  std::optional<Time> next_time() const;

  bool done() const { return running_ == 0 && waiting() == 0; }
  bool running(int local_rank) const { return alive_[static_cast<size_t>(local_rank)]; }
  bool service(int local_rank) const { return ranks_[static_cast<size_t>(local_rank)].service; }
  // Whether it has ended and will be restarted.
  bool waits(int local_rank) const {
    return restart_at_[static_cast<size_t>(local_rank)].has_value();
  }
  // The rank's restarts, including the one that it waits for.
  int restarts(int local_rank) const { return restarts_[static_cast<size_t>(local_rank)]; }
  int most_restarts(int local_rank) const {
    return ranks_[static_cast<size_t>(local_rank)].restarts;
  }
  bool restarts_are_left(int local_rank) const {
    return restarts(local_rank) < most_restarts(local_rank) || replacements_left() > 0;
  }
  // Failed ranks without which the others continue.
  int left_behind() const { return left_behind_; }
  // Replacements of all ranks together, and their maximum.
  int replaced() const { return replaced_; }
  int replacements() const { return replacements_; }
  // The number of replacements that are still possible.
  int replacements_left() const { return any_ended_well_ ? 0 : replacements_ - replaced_; }
  // Whether only services are left here, if any.
  bool served() const { return has_services_ && to_be_served_ == 0; }
  bool stopping() const { return phase_ != Phase::kRunning; }
  bool killing() const { return phase_ == Phase::kKilling; }
  const std::optional<RankExit>& failure() const { return failure_; }
  // Whether all ranks that are no services have ended with 0, perhaps because they were told to.
  bool all_ended_well() const { return done() && !any_ended_badly_; }
  // The signal that ended the job, when no rank had failed before.
  std::optional<int> stop_signal() const { return stop_signal_; }

 private:
  enum class Phase { kRunning, kStopping, kKilling };

  std::vector<SignalOrder> to_running(int signal, bool group) const;
  std::vector<SignalOrder> kill_all();
  bool comes_back(const RankExit& exit);
  bool goes_on_without(std::span<const RankExit> failures, bool one_had_ended_well) const;
  std::chrono::milliseconds pause_before_next(size_t rank, Time now);
  void begin_to_stop(Time now, bool asked);
  void give_up_restarts();
  std::ptrdiff_t waiting() const;

  std::vector<RankPolicy> ranks_;
  Grace grace_;
  bool alone_;
  std::vector<bool> alive_;
  std::vector<int> restarts_;
  std::vector<std::optional<Time>> restart_at_;
  int replacements_ = 0;
  int replaced_ = 0;
  bool shrinks_ = false;
  int left_behind_ = 0;
  std::vector<RankExit> left_;           // failed ranks without which the others continued
  std::vector<bool> is_left_;            // leave_behind() ended it
  std::optional<Time> leave_behind_by_;  // afterwards they are killed
  bool any_ended_well_ = false;          // a rank that is no service has
  bool any_ended_badly_ = false;         // likewise, and was not restarted
  std::vector<Time> started_at_;         // the latest process of a restarted rank
  std::vector<int> quick_ends_;          // of a rank, in a row
  int running_;
  int to_be_served_ = 0;  // ranks that are no services and have not succeeded
  bool has_services_ = false;
  Phase phase_ = Phase::kRunning;
  bool asked_ = false;         // to stop, without a failure
  bool heard_signal_ = false;  // a stopping signal arrived here
  Time kill_at_;
  std::optional<RankExit> failure_;
  std::optional<int> stop_signal_;
};

}  // namespace lockstep::inline v0::launch
