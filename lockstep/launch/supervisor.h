// Supervisor: what the agent does when a rank ends, a signal comes, or time passes. Pure: it is
// told the time and returns the signals to send.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/core/subprocess.h"

namespace lockstep::launch {

struct RankExit {
  int local_rank = 0;
  ExitStatus status;
  bool gave_up = false;  // it only waited for others, in vain
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

class Supervisor {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Supervisor(int ranks, std::chrono::milliseconds grace);

  // All ends found in one look. A failure makes the others stop: SIGTERM, and SIGKILL after the
  // grace.
  std::vector<SignalOrder> on_exits(std::span<const RankExit> exits, Time now);
  // A signal to the agent. SIGUSR1 and SIGUSR2 are passed on; any other stops the job: it is passed
  // on, SIGKILL follows after the grace, or at once when a second one comes.
  std::vector<SignalOrder> on_signal(int signal, Time now);
  // Ranks failed on another host, or its agent did: those here stop, as after a failure of theirs.
  std::vector<SignalOrder> on_stop(Time now);
  std::vector<SignalOrder> on_time(Time now);
  // When on_time() has something to do.
  std::optional<Time> next_time() const;

  bool done() const { return running_ == 0; }
  bool running(int local_rank) const { return alive_[static_cast<size_t>(local_rank)]; }
  bool killing() const { return phase_ == Phase::kKilling; }
  const std::optional<RankExit>& failure() const { return failure_; }
  // The signal that ended the job, when no rank had failed before.
  std::optional<int> stop_signal() const { return stop_signal_; }

 private:
  enum class Phase { kRunning, kStopping, kKilling };

  std::vector<SignalOrder> to_running(int signal, bool group) const;
  std::vector<SignalOrder> kill_all();

  std::chrono::milliseconds grace_;
  std::vector<bool> alive_;
  int running_;
  Phase phase_ = Phase::kRunning;
  Time kill_at_;
  std::optional<RankExit> failure_;
  std::optional<int> stop_signal_;
};

}  // namespace lockstep::launch
