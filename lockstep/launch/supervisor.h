// Supervisor: what the agent does when a rank ends, a signal comes, or time passes. Pure: it is
// told the time and returns the signals to send.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/core/subprocess.h"

namespace lockstep::launch {

struct RankExit {
  int local_rank = 0;
  ExitStatus status;
  bool gave_up = false;  // it only waited for others, in vain
  bool excused =
      false;  // since one stood still, which is replaced: that it is, too, is not counted
};

struct SignalOrder {
  int local_rank = 0;
  int signal = 0;
  bool group = true;  // to the rank's whole process group, or to its first process alone

  bool operator==(const SignalOrder&) const = default;
};

// The rank to blame among failures that were found at the same moment: one that died of a signal
// before one that exited (a dead peer makes the others exit with errors), an abort after other
// signals (it is how an uncaught error ends), one that only waited for others after all that did
// not, then the lowest rank. `exits` has at least one failure.
RankExit choose_first_failure(std::span<const RankExit> exits);

// What becomes of a rank that fails, and of the job without it (roles.h).
struct RankPolicy {
  int restarts = 0;      // so often it is started again, alone; not when it exited with 2
  bool service = false;  // it is stopped once all ranks that are no services have ended well
};

// Between SIGTERM and SIGKILL.
struct Grace {
  template <typename Rep, typename Period>
  Grace(std::chrono::duration<Rep, Period> always) : after_failure(always), when_asked(always) {}
  Grace(std::chrono::milliseconds failure, std::chrono::milliseconds asked)
      : after_failure(failure), when_asked(asked) {}

  std::chrono::milliseconds after_failure;
  std::chrono::milliseconds when_asked;  // nothing has failed: ranks may save what they have done
};

// Before a rank is started again for the n-th time, from 1: 100 ms, twice as long each time, at
// most 5 s.
std::chrono::milliseconds restart_pause(int n);
// A process that ends sooner than this counts as one that will do so again.
inline constexpr std::chrono::seconds kQuickEnd{1};

class Supervisor {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Supervisor(int ranks, Grace grace);
  // `alone`: the job has no ranks on other hosts. Otherwise on_stop() has to say when services end.
  // `replacements`: so often any of the ranks that fails is replaced, the others going on, until one
  // has ended well, for whom a new one would wait in vain. At once,
  // but for a rank whose processes end quickly, which has a pause of restart_pause() for each in a row.
  // `shrinks`: the others go on without a rank that fails, as long as there are any and none has ended well; not
  // where it exited with 2.
  Supervisor(std::vector<RankPolicy> ranks, Grace grace, bool alone = true, int replacements = 0,
             bool shrinks = false);

  // All ends found in one look. A failure makes the others stop: SIGTERM, and SIGKILL after the
  // grace; but a rank that has restarts left waits for the next one instead. So do the services
  // stop when nobody is left to be served; how they end says nothing then.
  std::vector<SignalOrder> on_exits(std::span<const RankExit> exits, Time now);
  // A signal to the agent. SIGUSR1 and SIGUSR2 are passed on; any other stops the job: it is passed
  // on, SIGKILL follows after the grace (SIGTERM asks), or at once when a second one comes. Whoever ends a job
  // on several hosts may tell all agents: SIGTERM to one whose ranks were asked already changes nothing, nor does
  // one that is `relayed` from another host; SIGKILL is relayed where that host got a second signal.
  std::vector<SignalOrder> on_signal(int signal, Time now, bool relayed = false);
  // Ranks failed on another host, or its agent did: those here stop, as after a failure of theirs.
  // Or only services are left on all hosts. `asked`: nothing failed, another generation follows.
  std::vector<SignalOrder> on_stop(Time now, bool asked = false);
  std::vector<SignalOrder> on_time(Time now);
  // Of a job that shrinks: these ranks are ended, with SIGKILL after the grace, since all others have ended without them.
  // Where any of those has ended well, how these end says nothing. Else nobody has done what there was to do: the job has
  // failed, with the first failure of the others.
  std::vector<SignalOrder> leave_behind(std::span<const int> ranks, Time now);
  // Where it shrinks: some rank has ended, and who still runs may be one that the others went on without.
  bool may_leave_behind() const {
    return shrinks_ && (any_ended_well_ || !left_.empty()) && phase_ == Phase::kRunning &&
           !leave_behind_by_;
  }
  bool any_ended_well() const { return any_ended_well_; }  // of the ranks that are no services
  // The ranks to start again now; they count as running.
  std::vector<int> take_restarts(Time now);
  // When on_time() or take_restarts() has something to do.
  std::optional<Time> next_time() const;

  bool done() const { return running_ == 0 && waiting() == 0; }
  bool running(int local_rank) const { return alive_[static_cast<size_t>(local_rank)]; }
  bool service(int local_rank) const { return ranks_[static_cast<size_t>(local_rank)].service; }
  // It has ended, and will be started again.
  bool waits(int local_rank) const {
    return restart_at_[static_cast<size_t>(local_rank)].has_value();
  }
  // How often the rank was started again, with the restart that it waits for.
  int restarts(int local_rank) const { return restarts_[static_cast<size_t>(local_rank)]; }
  int most_restarts(int local_rank) const {
    return ranks_[static_cast<size_t>(local_rank)].restarts;
  }
  bool restarts_are_left(int local_rank) const {
    return restarts(local_rank) < most_restarts(local_rank) || replacements_left() > 0;
  }
  // Ranks that failed and that the others go on without.
  int left_behind() const { return left_behind_; }
  // Of all ranks together, and how often that may be.
  int replaced() const { return replaced_; }
  int replacements() const { return replacements_; }
  // How many more there may come to be.
  int replacements_left() const { return any_ended_well_ ? 0 : replacements_ - replaced_; }
  // Only services are left here, if any.
  bool served() const { return has_services_ && to_be_served_ == 0; }
  bool stopping() const { return phase_ != Phase::kRunning; }
  bool killing() const { return phase_ == Phase::kKilling; }
  const std::optional<RankExit>& failure() const { return failure_; }
  // All ranks that are no services have ended with 0, whoever told them to.
  bool all_ended_well() const { return done() && !any_ended_badly_; }
  // The signal that ended the job, when no rank had failed before.
  std::optional<int> stop_signal() const { return stop_signal_; }

 private:
  enum class Phase { kRunning, kStopping, kKilling };

  std::vector<SignalOrder> to_running(int signal, bool group) const;
  std::vector<SignalOrder> kill_all();
  bool comes_back(const RankExit& exit);
  bool goes_on_without(std::span<const RankExit> failures) const;
  std::chrono::milliseconds pause_before_next(size_t rank, Time now);
  void begin_to_stop(Time now, bool asked);
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
  std::vector<RankExit> left_;           // that failed, and that the others went on without
  std::vector<bool> is_left_;            // leave_behind() ended it
  std::optional<Time> leave_behind_by_;  // then they are killed
  bool any_ended_well_ = false;          // of those that are no services
  bool any_ended_badly_ = false;         // likewise, and was not started again
  std::vector<Time> started_at_;         // the latest process of a rank that was started again
  std::vector<int> quick_ends_;          // of a rank, in a row
  int running_;
  int to_be_served_ = 0;  // ranks that are no services and have not ended well
  bool has_services_ = false;
  Phase phase_ = Phase::kRunning;
  bool asked_ = false;         // to stop, without a failure
  bool heard_signal_ = false;  // that stops, here
  Time kill_at_;
  std::optional<RankExit> failure_;
  std::optional<int> stop_signal_;
};

}  // namespace lockstep::launch
