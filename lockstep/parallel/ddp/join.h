// Join: training with unequal numbers of batches per rank.
//
// A rank that runs out of data shadows the others' calls, adding nothing, until all have run out:
// the calls of DistributedDataParallel (buckets, hooks, buffers) and those of the model's
// SyncBatchNorm layers. The user's own collectives between them are Mismatch. The average is over
// the ranks that still have data (DivideBy sets their weights). After PyTorch's
// torch.distributed.algorithms.Join; that one excludes SyncBatchNorm, and the optimizers of ranks
// that ran out early miss steps.
//
//   auto join = model.join();
//   for (auto& [image, label] : loader) {
//     optimizer.zero_grad();
//     torch::nll_loss(model(image), label).backward();
//     optimizer.step();
//   }
//   join.finish([&] { optimizer.step(); });
//
// Cost: one more call of 40 bytes per rank before each of those calls.
#pragma once

#include <functional>
#include <memory>
#include <source_location>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

namespace internal {
class Replica;
}

// Made by DistributedDataParallel::join(), on all ranks; must not outlive the wrapper. If it is
// destroyed without finish(), for example by an exception, this rank ends it alone, without
// communicating.
class [[nodiscard]] LOCKSTEP_API Join {
 public:
  explicit Join(std::shared_ptr<internal::Replica> replica);
  ~Join();
  Join(Join&&) noexcept = default;
  Join& operator=(Join&&) = delete;

  // Called when this rank's data end; returns when all ranks' have. `after_backward` (on all ranks
  // or none) is called whenever the others have ended a backward that communicates, with their
  // averaged gradients in the parameters: with optimizer.step() there, all ranks' parameters and
  // optimizers stay equal. Without it, a rank's optimizer misses those steps, and its parameters
  // are copied from a rank that stayed to the end. Gradients of accumulated backwards that had not
  // been communicated yet count in the others' next reduction.
  // Collective: all ranks call it.
  // Throws: the errors of the communicator and of `after_backward`.
  void finish(const std::function<void()>& after_backward = nullptr,
              std::source_location site = std::source_location::current());

 private:
  std::shared_ptr<internal::Replica> replica_;
};

}  // namespace lockstep::inline v0
