// SpareSchedule: when the agent starts spares, and when it keeps none any more. Pure: it is told the time.
#pragma once

#include <chrono>
#include <optional>

namespace lockstep::launch {

class SpareSchedule {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // So long after the last start of a rank or a spare: it does not compete with a start, or with a recovery.
  static constexpr std::chrono::seconds kPause{1};
  // So many in a row that end before they are needed are all that is tried.
  static constexpr int kMostLosses = 3;
  // One that has waited so long begins a new row: what ended it was not its own start.
  static constexpr std::chrono::seconds kSteady{60};

  // Keeps `count` of them. The ranks were started at `now`.
  SpareSchedule(int count, Time now);

  // Whether another one is to be started now, which counts as there then. `needed`: more than so many ranks cannot come
  // to need one.
  bool take_start(Time now, int needed);
  // When take_start() will have something to do, if nothing else happens.
  std::optional<Time> next_time(int needed) const;
  // A rank's process was started.
  void on_rank_started(Time now);
  // A spare became a rank.
  void on_taken(Time now);
  // A spare ended, or could not be started; `waiting_since`: when it began to wait for a rank, if it did. The next one
  // follows after restart_pause() (supervisor.h), and no sooner than kPause after the last start.
  void on_lost(Time now, std::optional<Time> waiting_since);
  // Too many were lost in a row.
  bool given_up() const { return losses_ >= kMostLosses; }

 private:
  int count_;
  int there_ = 0;
  int losses_ = 0;  // in a row
  Time next_;
};

}  // namespace lockstep::launch
