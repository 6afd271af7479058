// Stragglers: which rank the others wait for, for how long, since when, on which host; and, where that is
// allowed, its end, so that a launcher starts it anew.
//
//   StragglerMonitor monitor(comm);
//   for (int64_t step = 1; ...; ++step) {
//     const auto start = Clock::now();
//     const double waited = comm.waited();
//     ...                                          // forward, backward, the averages, the optimizer
//     monitor.add_step(seconds_since(start) - (comm.waited() - waited));
//     if (step % 50 == 0) monitor.compare(step);
//   }
//
// TrainLoop does this with StragglerCallback, which Trainer and the recipes add.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/train/straggler_watch.h"
#include "lockstep/train/train_loop.h"

namespace lockstep {

// A rank's own end because it stayed slower than its options allow. main() lets it end the process, with
// kExitCode as `lockstep train` does; the other ranks get PeerLost.
class Evicted : public Error {
 public:
  static constexpr int kExitCode = 75;  // EX_TEMPFAIL of sysexits.h: try again
  using Error::Error;
};

// Throws InvalidArgument, one line, unless `evict` is 0, or above 1 and a launcher has restarts at all: so many, or
// as many as it tells its ranks (`lockstep run` and torchrun with --max-restarts). Pure.
void check_eviction(double evict, int64_t max_restarts);
void check_eviction(double evict, const EnvLookup& env);

// One thread, the communicator's.
class StragglerMonitor {
 public:
  // `env` says what restarts the launcher has; where it names none, nobody counts them. Does not communicate.
  // Throws InvalidArgument (check(options)).
  explicit StragglerMonitor(Communicator comm, StragglerOptions options = {},
                            const EnvLookup& env = process_env());

  // How long this rank's own work in a step took: seconds without those in which it waited for others
  // (Communicator::waited()).
  void add_step(double seconds) { steps_.push_back(seconds); }
  // What the ranks were since the last call, up to step `step`: 88 bytes of each. Rank 0 says in one line on
  // stderr when a rank begins to be late, and when it ends. Throws Evicted on the rank that is to go,
  // alone; not where the launcher's restarts are used up, which with --on-failure replace all ranks of a host
  // share. Collective.
  void compare(int64_t step);

  // As of the latest compare(); the same on all ranks that have compared as often.
  std::optional<Straggler> straggler() const { return watch_.straggler(); }
  // "" before the first compare().
  std::string host(int rank) const;

 private:
  // The launcher's, as it told this process.
  struct Restarts {
    std::optional<int64_t> most;
    bool shared = false;  // by the ranks of a host: single ones are replaced
    int32_t node = 0;
    int32_t count = 0;  // of this rank, or, where they are not shared, of all ranks together
  };
  static Restarts read_restarts(const EnvLookup& env);

  Communicator comm_;
  Restarts restarts_;
  StragglerWatch watch_;
  std::vector<double> steps_;
  std::vector<std::string> hosts_;
};

// Compares at each log, and adds to it, where a rank is late: straggler_rank, straggler_late_s (a step),
// straggler_since_step and, as a text, straggler_host. To be added on every rank, before what writes logs.
class StragglerCallback final : public TrainCallback {
 public:
  explicit StragglerCallback(Communicator comm, StragglerOptions options = {})
      : monitor_(std::move(comm), options) {}
  void on_step(const TrainerState& state, const StepResult& result) override;
  void before_log(const TrainerState& state, LogEvent& event) override;

 private:
  StragglerMonitor monitor_;
};

// That callback as Trainer and the recipes have it. evict: the times that a rank may be slower without being
// evicted; 0: none is. Throws what check_eviction() throws for this process. Does not communicate.
std::shared_ptr<TrainCallback> straggler_report(const Communicator& comm, double evict);

}  // namespace lockstep
