// Spares: the processes of a host that were started before a rank needs them (spare_wait.h), as the
// agent sees them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/poll_set.h"
#include "lockstep/launch/sentinel.h"
#include "lockstep/launch/spare_order.h"
#include "lockstep/launch/spare_schedule.h"
#include "lockstep/launch/worker.h"

namespace lockstep::inline v0::launch {

// The destructor kills the remaining spares.
// Thread-safety: one thread at a time.
class Spares {
 public:
  using Time = SpareSchedule::Time;

  struct Effects {
    // Starts a process with kSpareFd, which is `link`, in its environment. May throw Error.
    std::function<std::unique_ptr<Worker>(int link)> start;
    std::function<void(const std::string& line)> say;  // to the user
    // Takes over a spare that has ended while processes of its group live.
    std::function<void(std::unique_ptr<Worker>)> leave;
  };

  // Keeps `count` spares; `sentinel` watches them at the places from `first_place` on, and outlives
  // this.
  Spares(int count, Sentinel& sentinel, int first_place, Effects effects, Time now);

  // Makes `polls` wake when tend() has work.
  void watch(PollSet& polls, Time now, int needed);
  // Checks which spares have ended, and starts another one if it is time. `needed`: SpareSchedule.
  void tend(Time now, int needed);
  // A rank's process was started: spares do not compete with it.
  void on_rank_started(Time now) { schedule_.on_rank_started(now); }
  // Whether a spare waits for a rank, or will soon, where another one of this program has done so.
  bool available() { return best() != nullptr; }
  // Makes one a rank, whose place in the sentinel is `rank`. nullptr: none is available.
  std::unique_ptr<Worker> give(const SpareOrder& order, int rank, Time now);
  // Kills all spares.
  void dismiss();

 private:
  struct Spare {
    std::unique_ptr<Worker> worker;
    UniqueFd link;
    int place;
    std::optional<Time> waiting_since;
  };

  void start(Time now);
  void listen(Spare& spare, Time now);
  void lose(Spare& spare, Time now);
  void end(Spare& spare);
  Spare* best();

  Sentinel& sentinel_;
  Effects effects_;
  SpareSchedule schedule_;
  std::vector<int> free_places_;
  std::vector<std::unique_ptr<Spare>> spares_;  // their addresses are in a PollSet
  bool program_waits_ = false;                  // a spare has waited
};

}  // namespace lockstep::inline v0::launch
