// An experiment: jobs that take turns, round after round, so that all meet what changes on the
// machine meanwhile. What compares, benchmarks or verifies is one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/report/progress_bar.h"

namespace lockstep::bench {

struct Job {
  std::string name;
  // A turn: does the job, keeps what it finds, and returns that in a few words. Error: the job has
  // failed.
  std::function<std::string()> turn;
};

// One turn of one job, for a watcher.
struct Turn {
  const std::string& job;
  int round, rounds;    // from 1
  int64_t number, all;  // likewise, of all turns of the experiment
};

class TurnWatcher {
 public:
  virtual ~TurnWatcher() = default;
  virtual void begins(const Turn&) {}
  virtual void ended(const Turn&, const std::string& /*found*/) {}
  // Called where the error is caught: "throw;" ends the experiment. Otherwise it goes on, and the
  // job has no further turn.
  virtual void failed(const Turn&, const Error&) { throw; }
};

// All jobs in their order, `rounds` times.
// Throws: what a watcher throws, and what a turn throws that is no Error.
void run_experiment(const std::vector<Job>& jobs, int rounds, TurnWatcher& watcher);

// A bar on stderr, of one experiment, or of several that have `all` turns together.
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

}  // namespace lockstep::bench
