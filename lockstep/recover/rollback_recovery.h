// RollbackRecovery: recovery for training whose state is divided among the ranks (ZeRO, FSDP), when
// ranks die and are replaced.
//
//   RollbackRecovery run(init());
//   while (true) try {
//     Net net;                                                       // on run.comm()
//     ZeroOptimizer optimizer(run.comm(), to_named_tensors(net->named_parameters()), options);
//     if (run.state()) optimizer.restore_share(*run.state());
//     const auto share = [&](at::Tensor memory) { return optimizer.share(std::move(memory)); };
//     run.begin(share);
//     while (run.step() < steps) {
//       loss(net, batch_of(run.step())).backward();
//       optimizer.step();
//       run.stepped(share);
//     }
//     run.finish();
//     break;
//   } catch (...) {
//     run.recover();
//   }
//
// Recovery (recovery.h) relies on all ranks having the parameters; here a rank's share is lost with
// it. Another rank, on another host where there are several, therefore keeps a replica of every
// rank's state in memory. It is renewed every `every` steps and sent while training continues.
// After a death all ranks go back to the latest step for which all states exist, and repeat the
// later steps: the numbers equal those of an undisturbed run. The method is Gemini's (Wang et al.,
// SOSP 2023), except that processes survive.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/work.h"
#include "lockstep/core/export.h"
#include "lockstep/recover/reunion.h"

namespace lockstep::inline v0 {
namespace recover {
struct Rollback;
}

// The options of a RollbackRecovery.
struct LOCKSTEP_API RollbackOptions {
  // Steps between two replicas: after a death up to this many steps are repeated, and as many again
  // where the latest replicas were still being sent. The same on all ranks.
  int64_t every = 10;
  // As RecoveryOptions::patience.
  std::chrono::nanoseconds patience = std::chrono::minutes(2);
};

// Memory of a rank: four times the size of `state`: its own of the latest two replicas, and those
// of the rank that it replicates; five times during a recovery.
// Thread-safety: the communicator's thread only.
class LOCKSTEP_API RollbackRecovery {
 public:
  // A state: uint8, 1-D, contiguous, in the CPU's memory: all of this rank's state from which
  // training can continue at the step. Sizes may differ between ranks and calls. `memory`: an
  // earlier state that is no longer needed, whose memory may be reused; undefined at first.
  using State = std::function<at::Tensor(at::Tensor memory)>;

  // As Recovery's: a rank that replaces a dead one meets the others here, before any other
  // collective call.
  // Collective: all ranks call it.
  // Throws: InvalidArgument, Timeout, PeerLost (a rank's state is lost).
  explicit RollbackRecovery(Communicator comm, RollbackOptions options = {});
  RollbackRecovery(const RollbackRecovery&) = delete;
  RollbackRecovery& operator=(const RollbackRecovery&) = delete;

  Communicator& comm() { return comm_; }  // the current generation's
  // This rank's state at step(), until the first stepped() that keeps another one; nullopt where
  // the run starts.
  const std::optional<at::Tensor>& state() const { return state_; }
  int64_t step() const { return step_; }          // steps done
  int recoveries() const { return recoveries_; }  // so far
  // Seconds of the latest recovery, without the steps that are repeated.
  recover::RecoveryTimes times() const { return times_; }

  // Called before the first step, and after every recovery once state() has been restored: returns
  // when all states have a replica. Collective, as are the others.
  void begin(const State& state);
  // Called after every step. `state` is called at every N-th call. Waits for the previous replica,
  // which has had that time to arrive, and starts to send the new one.
  void stepped(const State& state);
  // As Recovery::recover(), while an exception is handled: afterwards all ranks have their state()
  // of the same step(). The caller makes everything on the former communicator again.
  void recover();
  // Called at the end, inside the `try`: returns once all ranks have done all their steps, so that
  // none ends while others still need its share. As Recovery::finish() for
  // ranks that are killed afterwards.
  void finish();

 private:
  struct Kept {
    int64_t step = -1;
    at::Tensor own, copy;
    std::vector<Work> pending;  // receives the replica, and sends its own
  };

  Kept& latest() { return kept_[latest_]; }
  void keep(const State& state);
  void start_copy(Kept& kept, at::Tensor memory);
  static void wait(Kept& kept);
  recover::Rollback resume();
  void give_up_pending() noexcept;

  Communicator comm_;
  RollbackOptions options_;
  std::optional<Communicator> copies_;  // of the same ranks, for traffic beside training
  int local_ = 1;                       // ranks of the largest host
  std::array<Kept, 2> kept_;
  size_t latest_ = 0;
  bool begun_ = false, lost_ = false;
  int64_t step_ = 0;
  std::optional<at::Tensor> state_;
  int recoveries_ = 0;
  recover::RecoveryTimes times_;
};

}  // namespace lockstep::inline v0
