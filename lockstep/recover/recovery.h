// Recovery: training that loses no step when ranks die, and no bit where they are replaced.
//
//   Communicator comm = init();
//   Net net;
//   optim::FusedAdamW optimizer(net->parameters(), {.lr = 1e-3});
//   Recovery run(comm, {.model = net.ptr(), .optimizer = &optimizer});
//   while (run.step() < steps) try {
//     DistributedDataParallel ddp(net, run.comm(), {.init_sync = false});
//     while (run.step() < steps) {
//       const Batch batch = batch_of(run.step(), run.comm().rank());
//       optimizer.zero_grad();
//       loss(ddp(batch.x), batch.y).backward();
//       run.update([&] { optimizer.step(); });
//     }
//   } catch (...) {
//     run.recover();
//   }
//   run.finish();
//
// It is used with `lockstep run --on-failure replace --max-restarts 10 --nproc-per-node 4 ./train`.
// When a rank dies, the others keep their process and their model. A new process takes its place;
// it gets parameters and the optimizer's state from one of them, and the dead rank's own state from
// a neighbour. The interrupted step is repeated from its start, or completed where all had agreed
// on it. The final parameters equal those of an undisturbed run in every bit.
//
// Method: before an update all ranks agree that they have their gradients (a barrier), and each
// gives its neighbours, on other hosts where there are any, a copy of its own state after this
// step: its random stream, its buffers, the caller's state. When one rank has taken step k, every
// rank, dead or alive, was therefore ready for it. After a failure, ranks that had agreed on a step
// that others took complete it; all others go back to the step's start. Compare torchft
// (https://github.com/meta-pytorch/torchft), which abandons such a step, and ReCycle
// (arXiv:2405.14009), which keeps no spare ranks.
//
// With `lockstep run --on-failure shrink` no rank is replaced: the others go on without the dead
// rank, on a smaller group (Communicator::shrink()), with new numbers in the same order. The same
// loop serves, if it deals a step's samples by run.comm()'s rank and size. What the dead rank had
// alone is lost, unless Recoverable::inherit takes it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/recover/reunion.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0 {
namespace amp {
class GradScaler;
}
namespace recover {
struct Resumption;
}

// The training state of this rank, in the CPU's memory or on one device. All of it outlives the
// Recovery.
struct Recoverable {
  // Parameters are the same on all ranks; buffers, such as running means, may differ from rank to
  // rank. A run starts with rank 0's parameters and buffers.
  std::shared_ptr<torch::nn::Module> model;
  // An optimizer that optimizer_state() supports; may be null.
  torch::optim::Optimizer* optimizer = nullptr;
  // May be null. It works with every new generation. unscale() precedes update(), which makes the
  // scaler's step() and update() local.
  amp::GradScaler* scaler = nullptr;
  // The rank's other state, such as the state of a generator of its own. `save` is called in every
  // update(), before `take`, and returns the state after the step; `load` restores it. Set both or
  // none.
  std::function<std::string()> save = nullptr;
  std::function<void(const std::string&)> load = nullptr;
  // Where ranks are left out: called on rank 0, after `load`, with what `save` had returned on each
  // rank that is gone, to add it to this rank's. It is not called for a rank whose neighbours in
  // the ring of ranks have died with it. May be null; set on all ranks or none, beside `save`.
  std::function<void(const std::string&)> inherit = nullptr;
};

// The options of a Recovery.
struct LOCKSTEP_API RecoveryOptions {
  // Time for all ranks to meet again after a failure: longer than a new process takes to start, and
  // longer than any rank goes without communicating, for example while it writes a file.
  std::chrono::nanoseconds patience = std::chrono::minutes(2);
  // Whether the others go on without ranks that die. It needs a launcher that does not end them,
  // and a store that outlives the ranks. The same on all ranks; false where the launcher replaces
  // ranks.
  bool shrinks = recover::job_shrinks();
};

// Thread-safety: the communicator's thread only.
class LOCKSTEP_API Recovery {
 public:
  // A rank that replaces a dead one receives the training state here, while the others are in
  // recover(). `comm` is the result of init(), and nothing else has been called on it: between the
  // two a new process is alone. Without --on-failure replace it works as well, until a rank dies.
  // Collective: all ranks of the job.
  // Throws: InvalidArgument, Timeout, PeerLost (a replaced rank's own state is lost), Mismatch.
  Recovery(Communicator comm, Recoverable state, RecoveryOptions options = {});
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  // The communicator of the present ranks. Objects made from it, such as DistributedDataParallel,
  // are made again after recover().
  Communicator& comm() { return comm_; }
  // The number of updates done by all ranks, which is also the number of the current one, counted
  // from 0.
  int64_t step() const { return step_; }
  // How often the ranks have met again since this process started.
  int recoveries() const { return recoveries_; }

  // Called once a step, when this rank's gradients are complete. Waits until all ranks' gradients
  // are complete, on a device until it has computed them (the host stops once a step, and once a
  // buffer), then calls `take`, which updates parameters and optimizer and must neither communicate
  // nor fail. `take` is kept, and recover() may call it, so it must not refer to anything declared
  // inside the `try`. When update() is called, this rank's own state (random stream, buffers, the
  // result of `save`) must already be as after the step; it changes neither in `take` nor until the
  // next step begins, since a failure in between would restore it.
  // Collective: all ranks call it.
  // Throws: the communicator's errors; then call recover().
  void update(const std::function<void()>& take);

  // Called while an exception is handled, on every rank that has one. After PeerLost and Timeout it
  // meets the other ranks anew, and returns once all are at the same step, with undefined gradients
  // and the random stream of that step's start. Any other exception, and an unrecoverable one, is
  // rethrown; where ranks are left out, so is the error of a rank that the others have left out,
  // whose process should end. One rank writes a line on stderr.
  // Collective: the survivors, and the newcomers' constructors.
  void recover();

  using Times = recover::RecoveryTimes;
  Times times() const { return times_; }  // of the recoveries so far

  // Called at the end: returns once all ranks have done all their steps, so that none ends while
  // others still need it. Recovers by itself. A rank that is killed (SIGKILL) afterwards is
  // not replaced, since no rank is left to meet its replacement, and does not itself fail the job;
  // ranks that call a collective with it do, with PeerLost.
  // Collective: all ranks call it.
  void finish();

 private:
  enum class Phase { kComputing, kAgreeing, kUpdating };
  // When all ranks are at the same step: the numbers that they have then, and by which they keep
  // copies.
  struct Standing {
    int rank = -1;
    at::Tensor own;
    std::map<int, at::Tensor> copies;
    std::vector<int> firsts;  // the ranks' numbers when the run began
  };

  at::Tensor capture() const;
  void put_back(const at::Tensor& packed);
  void begin();
  void apply();
  std::string reason_to_go_on() const;
  void meet_again(Deadline deadline, const std::string& reason);
  void say_it_goes_on(const recover::Resumption& plan, const std::vector<int>& before,
                      const std::string& reason) const;
  recover::Resumption resume();
  void settle_standing();
  void stand(Standing standing);
  at::Tensor with_inheritance(const recover::Resumption& plan);
  void send_state(int to);
  void become_whole(int source, int holder, int64_t step);

  Communicator comm_;
  Recoverable state_;
  at::Device device_ = at::kCPU;  // the model's device
  RecoveryOptions options_;
  recover::DeadRanks dead_ranks_;
  bool whole_ = false;
  bool lost_ = false;  // the state is lost; all ranks report it
  Phase phase_ = Phase::kComputing;
  int64_t step_ = 0;
  int recoveries_ = 0;
  Times times_;
  std::function<void()> take_;
  at::Tensor own_, next_;  // this rank's own state at the start of this step, and of the next
  std::map<int, at::Tensor> copies_, next_copies_;  // the neighbours' states, likewise
  int former_ = -1;                                 // Standing::rank of the latest
  int64_t standings_ = 0;                           // so far, of this process
  std::vector<int> firsts_;                         // of the latest; at first all ranks
  int first_ = -1;                                  // this rank's
  int local_ = 1;           // ranks of the largest host, for the choice of who keeps copies
  bool some_lost_ = false;  // in this recovery no rank had a copy of what a gone rank had alone
  // The ranks that are left agree on it: all have come to its barrier once one of them has passed.
  std::optional<Standing> agreeing_on_;
};

}  // namespace lockstep::inline v0
