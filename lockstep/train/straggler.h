// Stragglers: finds the rank that the others wait for, with its delay, its host and the step at
// which it became slow. If that is allowed, the rank ends itself, and a launcher starts it anew.
//
//   StragglerMonitor monitor(comm);
//   for (int64_t step = 1; ...; ++step) {
//     const auto start = Clock::now();
//     const double waited = comm.waited();
//     ...                                    // forward, backward, the averages, the optimizer
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
#include "lockstep/core/export.h"
#include "lockstep/train/straggler_watch.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

// Thrown on a rank that stayed slower than its options allow. main() lets it end the process with
// kExitCode, as `lockstep train` does; the other ranks get PeerLost.
class LOCKSTEP_API Evicted : public Error {
 public:
  static constexpr int kExitCode = 75;  // EX_TEMPFAIL of sysexits.h: try again
  using Error::Error;
};

// Pure. The restarts are `max_restarts`, or those that the launcher tells its ranks (`lockstep run`
// and torchrun with --max-restarts).
// Throws: InvalidArgument of one line unless `evict` is 0, or above 1 with a launcher that has
// restarts.
LOCKSTEP_API void check_eviction(double evict, int64_t max_restarts);
LOCKSTEP_API void check_eviction(double evict, const EnvLookup& env);

// Thread-safety: one thread, the communicator's.
class LOCKSTEP_API StragglerMonitor {
 public:
  // `env` tells the launcher's restarts; if it names none, they are not counted. Does not
  // communicate.
  // Throws: InvalidArgument (check(options)).
  explicit StragglerMonitor(Communicator comm, StragglerOptions options = {},
                            const EnvLookup& env = process_env());

  // `seconds`: the time of this rank's own work in a step, without the time in which it waited for
  // other ranks (Communicator::waited()).
  void add_step(double seconds) { steps_.push_back(seconds); }
  // Compares the ranks' work since the last call, up to step `step`. Rank 0 prints one line on
  // stderr when a rank begins to be late, and another one when that ends.
  // Collective: all ranks, with 88 bytes of each.
  // Throws: Evicted, only on the rank that is to end, unless the launcher's restarts are used up.
  // With --on-failure replace all ranks of a host share the restarts.
  void compare(int64_t step);

  // The result of the latest compare(). It is the same on all ranks that have compared as often.
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

// Compares at each log. If a rank is late, it adds straggler_rank, straggler_late_s (for each
// step), straggler_since_step and, as a text, straggler_host to the log. Add it on every rank,
// before the callbacks that write logs.
class LOCKSTEP_API StragglerCallback final : public TrainCallback {
 public:
  explicit StragglerCallback(Communicator comm, StragglerOptions options = {})
      : monitor_(std::move(comm), options) {}
  void on_step(const TrainerState& state, const StepResult& result) override;
  void before_log(const TrainerState& state, LogEvent& event) override;

 private:
  StragglerMonitor monitor_;
};

// The callback of Trainer and the recipes. `evict`: a rank that is so many times slower is evicted;
// 0: none is. Does not communicate.
// Throws: as check_eviction() for this process.
LOCKSTEP_API std::shared_ptr<TrainCallback> straggler_report(const Communicator& comm,
                                                             double evict);

}  // namespace lockstep::inline v0
