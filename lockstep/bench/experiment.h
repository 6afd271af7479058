// An experiment: jobs that take turns, round after round, so that changes on the machine meet all
// of them. Comparisons, benchmarks and checks of equality are experiments.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/report/progress_bar.h"

namespace lockstep::inline v0::bench {

struct Job {
  std::string name;
  // Does the job for one turn, keeps the result, and returns it in a few words. An Error means that
  // the job has failed.
  std::function<std::string()> turn;
};

// One turn of one job, for a watcher.
struct Turn {
  const std::string& job;
  int round, rounds;    // counted from 1
  int64_t number, all;  // turns of the whole experiment, counted from 1
};

class TurnWatcher {
 public:
  virtual ~TurnWatcher() = default;
  virtual void begins(const Turn&) {}
  virtual void ended(const Turn&, const std::string& /*found*/) {}
  // It is called where the error is caught, so that "throw;" ends the experiment. Otherwise the
  // experiment goes on, and the job has no further turn.
  virtual void failed(const Turn&, const Error&) { throw; }
};

// Gives all jobs a turn in their order, `rounds` times.
// Throws: what a watcher throws, and what a turn throws that is no Error.
void run_experiment(const std::vector<Job>& jobs, int rounds, TurnWatcher& watcher);

// A progress bar on stderr for one experiment, or for several that have `all` turns together.
class TurnBar final : public TurnWatcher {
 public:
  explicit TurnBar(int64_t all = 0);
  void starting(const std::string& job);  // before the first turn
  void ended(const Turn& turn, const std::string& found) override;
  void finish(const std::string& line) { bar_.finish(line); }

 private:
  ProgressBar bar_;
  int64_t done_ = 0, all_;
};

}  // namespace lockstep::inline v0::bench
