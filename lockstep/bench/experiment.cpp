#include "lockstep/bench/experiment.h"

#include <unistd.h>

#include <optional>

#include "lockstep/core/env.h"

namespace lockstep::inline v0::bench {

void run_experiment(const std::vector<Job>& jobs, int rounds, TurnWatcher& watcher) {
  std::vector<bool> has_failed(jobs.size());
  int64_t number = 0;
  for (int round = 1; round <= rounds; ++round) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      const Turn turn{jobs[i].name, round, rounds, ++number,
                      static_cast<int64_t>(jobs.size()) * rounds};
      if (has_failed[i]) continue;
      watcher.begins(turn);
      std::optional<std::string> found;
      try {
        found = jobs[i].turn();
      } catch (const Error& error) {
        has_failed[i] = true;
        watcher.failed(turn, error);
      }
      if (found) watcher.ended(turn, *found);
    }
  }
}

TurnBar::TurnBar(int64_t all)
    : bar_({.terminal = find_terminal(STDERR_FILENO, process_env())}), all_(all) {}

void TurnBar::starting(const std::string& job) {
  bar_.update({.label = "starting " + job, .done = 0, .total = 1});
}

void TurnBar::ended(const Turn& turn, const std::string&) {
  std::string label = turn.job;
  if (turn.rounds > 1)
    label += " round " + std::to_string(turn.round) + "/" + std::to_string(turn.rounds);
  bar_.update({.label = label, .done = ++done_, .total = all_ == 0 ? turn.all : all_});
}

}  // namespace lockstep::inline v0::bench
