// Recovery: training that loses no step and no bit when ranks die and are started anew.
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
// with `lockstep run --on-failure replace --max-restarts 10 --nproc-per-node 4 ./train`: where a rank
// dies, the others keep their process and their model; a new process takes its place, gets parameters
// and the optimizer's state from one of them, and what the dead rank had alone from a neighbour. The
// step that was interrupted is repeated from its start, or completed where all had agreed on it. The
// parameters at the end are those of a run that nothing happened to, in every bit.
//
// How: before an update all ranks agree that they have their gradients (a barrier), and each gives
// its neighbours a copy of what it has alone after this step: its random stream, its buffers, the
// caller's own. So when one rank has taken step k, every rank, dead or alive, was ready for it. After
// a failure the ranks that had agreed on a step which others took complete it; all others go back to
// the step's start. Compare torchft (https://github.com/meta-pytorch/torchft), which gives such a
// step up, and ReCycle (arXiv:2405.14009), which spares none.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/recover/reunion.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {
namespace amp {
class GradScaler;
}
namespace recover {
struct Resumption;
}

// What training consists of, on this rank: in the CPU's memory, or on one device. All of it outlives the Recovery.
struct Recoverable {
  // The same on all ranks: parameters. Buffers, such as running means, may differ from rank to rank. A
  // run begins with rank 0's of both.
  std::shared_ptr<torch::nn::Module> model;
  // One that optimizer_state() understands; may be null.
  torch::optim::Optimizer* optimizer = nullptr;
  // May be null; works with every new generation. unscale() comes before update(), which makes its
  // step() and update() local.
  amp::GradScaler* scaler = nullptr;
  // What else this rank has alone, such as the state of a generator of its own. `save` is called in
  // every update(), before `take`, and gives it as it will be after the step; `load` puts it back.
  // Both or none.
  std::function<std::string()> save = nullptr;
  std::function<void(const std::string&)> load = nullptr;
};

struct RecoveryOptions {
  // For all ranks to meet again after a failure: longer than a new process takes to start, and than
  // any rank goes without communicating, such as while it writes a file.
  std::chrono::nanoseconds patience = std::chrono::minutes(2);
};

// One thread, the communicator's; every member that says so is collective.
class Recovery {
 public:
  // A rank that replaces a dead one receives the state of training here, while the others are in
  // recover(). `comm` is what init() returned, and nothing else has been called on it: between the
  // two a new process is alone. Anywhere but under --on-failure replace it works as well, until a
  // rank dies. Collective. Throws InvalidArgument, Timeout, PeerLost (what a dead rank had alone is
  // lost), Mismatch.
  Recovery(Communicator comm, Recoverable state, RecoveryOptions options = {});
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  // The present generation's; what is made of it, such as DistributedDataParallel, is made again
  // after recover().
  Communicator& comm() { return comm_; }
  // Updates done by all ranks: the one under way is this one, counted from 0.
  int64_t step() const { return step_; }
  // How often ranks were replaced since this process is there.
  int recoveries() const { return recoveries_; }

  // Once a step, when this rank's gradients are complete: waits until all ranks' are, on a device until it is through
  // with them (the host stops once a step, and once a buffer), then calls
  // `take`, which updates parameters and optimizer and must neither communicate nor fail. It is kept:
  // recover() may be what calls it, so it refers to nothing that was declared inside the `try`. What
  // this rank has alone (random stream, buffers, what `save` gives) is as it will be after the step
  // when update() is called, and is changed neither by `take` nor until the next step begins: a
  // failure in between would put it back.
  // Collective. Throws what a communicator throws; then call recover().
  void update(const std::function<void()>& take);

  // To be called while an exception is handled, on whatever rank there was one. PeerLost and Timeout:
  // meets the other ranks anew and returns once all stand at the same step, gradients undefined, the
  // random stream where that step begins. Any other exception, and one that nobody can recover from,
  // is thrown further. One rank writes a line on stderr. Collective over the survivors and the
  // newcomers' constructors.
  void recover();

  using Times = recover::RecoveryTimes;
  Times times() const { return times_; }

  // At the end: returns once all ranks have done all their steps, so that none ends while others
  // still need it. Recovers by itself. A rank that dies behind it ends the job: nobody is left to meet. Collective.
  void finish();

 private:
  enum class Phase { kComputing, kAgreeing, kUpdating };

  at::Tensor capture() const;
  void put_back(const at::Tensor& packed);
  void begin();
  void apply();
  std::string reason_to_go_on() const;
  void meet_again(Deadline deadline, const std::string& reason);
  recover::Resumption resume();
  void send_state(int to);
  void become_whole(int source, int keeper, int64_t step);

  Communicator comm_;
  Recoverable state_;
  at::Device device_ = at::kCPU;  // the model's
  RecoveryOptions options_;
  bool whole_ = false;
  bool has_copies_ = false;
  bool lost_ = false;  // a state that nobody has: all ranks say so
  Phase phase_ = Phase::kComputing;
  int64_t step_ = 0;
  int recoveries_ = 0;
  Times times_;
  std::function<void()> take_;
  at::Tensor own_, next_;  // what this rank has alone at the start of this step, and of the next
  std::map<int, at::Tensor> copies_, next_copies_;  // of neighbours, likewise
};

}  // namespace lockstep
