// SpareSchedule: decides when the agent starts spares, and when it stops keeping them. Pure: it is
// told the time.
#pragma once

#include <chrono>
#include <optional>

namespace lockstep::inline v0::launch {

class SpareSchedule {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The pause after the last start of a rank or a spare, so that spares do not compete with a start
  // or a recovery.
  static constexpr std::chrono::seconds kPause{1};
  // After this many consecutive losses no more are started.
  static constexpr int kMostLosses = 3;
  // A spare that has waited this long ends the row of losses: its own start was not the cause of
  // its end.
  static constexpr std::chrono::seconds kSteady{60};

  // Keeps `count` spares. The ranks were started at `now`.
  SpareSchedule(int count, Time now);

  // Whether to start another spare now, which then counts as present. `needed`: the number of ranks
  // that can still come to need one.
  bool take_start(Time now, int needed);
  // The next time when take_start() may change, if nothing else happens.
  std::optional<Time> next_time(int needed) const;
  // A rank's process was started.
  void on_rank_started(Time now);
  // A spare became a rank.
  void on_taken(Time now);
  // A spare ended, or could not be started; `waiting_since`: when it began to wait for a rank, if
  // it did. The next one follows after restart_pause() (supervisor.h), and no sooner than kPause
  // after the last start.
  void on_lost(Time now, std::optional<Time> waiting_since);
  // Whether too many were lost in a row.
  bool given_up() const { return losses_ >= kMostLosses; }

 private:
  int count_;
  int there_ = 0;
  int losses_ = 0;  // in a row
  Time next_;
};

}  // namespace lockstep::inline v0::launch
