// RollbackRecovery: training whose state is divided among the ranks (ZeRO, FSDP), and that goes on when
// ranks die and are started anew.
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
// Where Recovery (recovery.h) has every rank's parameters on all ranks, here a rank's share is gone with
// it. So a copy of every rank's state lies in another rank's memory, on another host where there are
// several: renewed every `every` steps, sent while training goes on. After a death all ranks go back to
// the latest step of which all states are there, and repeat what came after: the numbers are those of a
// run that nothing happened to. As Gemini has it (Wang et al., SOSP 2023), but for the processes, which
// stay.
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
#include "lockstep/recover/reunion.h"

namespace lockstep {
namespace recover {
struct Rollback;
}

struct RollbackOptions {
  // Steps between two copies: after a death up to so many are repeated, and as many again where the latest copies
  // were still on their way. The same on all ranks.
  int64_t every = 10;
  // As RecoveryOptions::patience.
  std::chrono::nanoseconds patience = std::chrono::minutes(2);
};

// One thread, the communicator's. Memory of a rank: four times what `state` gives: its own of the latest two copies, and
// its ward's; five times during a recovery.
class RollbackRecovery {
 public:
  // A state: uint8, 1-D, contiguous, in the CPU's memory: all that this rank has, and that makes training go on at the
  // step. Sizes may differ from rank to rank and from call to call. `memory`: a former one's, which nobody needs any
  // more, to be written to where that serves; undefined at first.
  using State = std::function<at::Tensor(at::Tensor memory)>;

  // As Recovery's: a rank that replaces a dead one meets the others here, before it calls anything
  // else that is collective. Collective. Throws InvalidArgument, Timeout, PeerLost (a rank's state is lost).
  explicit RollbackRecovery(Communicator comm, RollbackOptions options = {});
  RollbackRecovery(const RollbackRecovery&) = delete;
  RollbackRecovery& operator=(const RollbackRecovery&) = delete;

  Communicator& comm() { return comm_; }  // the present generation's
  // What this rank's state was at step(), until the first stepped() that keeps another; nothing where the run begins.
  const std::optional<at::Tensor>& state() const { return state_; }
  int64_t step() const { return step_; }  // steps done
  int recoveries() const { return recoveries_; }
  // Seconds of the latest recovery, without the steps that are repeated.
  recover::RecoveryTimes times() const { return times_; }

  // Before the first step, and after every recovery, once state() has been put back: returns when all states
  // have a copy. Collective, as are the others.
  void begin(const State& state);
  // After every step. `state` is called every so-manieth time. Waits for the former copy, which has had all
  // the time since then, and starts to send the new one.
  void stepped(const State& state);
  // As Recovery::recover(), while an exception is handled: afterwards all ranks have their state() of the
  // same step(). What stood on the former communicator is made again by the caller.
  void recover();
  // At the end, inside the `try`: returns once all ranks have done all their steps, so that none ends while others
  // still need its share. A rank that dies behind it ends the job.
  void finish();

 private:
  struct Kept {
    int64_t step = -1;
    at::Tensor own, copy;
    std::vector<Work> pending;  // the ward's to copy, own to its keeper
  };

  Kept& latest() { return kept_[latest_]; }
  void keep(const State& state);
  void start_copy(Kept& kept, at::Tensor memory);
  static void wait(Kept& kept);
  recover::Rollback resume();
  void give_up_pending() noexcept;

  Communicator comm_;
  RollbackOptions options_;
  std::optional<Communicator> copies_;  // of the same ranks, for what travels beside training
  int local_ = 1;                       // ranks of the largest host
  std::array<Kept, 2> kept_;
  size_t latest_ = 0;
  bool begun_ = false, lost_ = false;
  int64_t step_ = 0;
  std::optional<at::Tensor> state_;
  int recoveries_ = 0;
  recover::RecoveryTimes times_;
};

}  // namespace lockstep
