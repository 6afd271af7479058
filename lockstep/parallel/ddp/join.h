// Join: ranks that have unequal numbers of batches.
//
// A rank that runs out of data makes the others' calls along, adding nothing, until all have run
// out: the calls of DistributedDataParallel (buckets, hooks, buffers) and those of the model's
// SyncBatchNorm layers. Collectives of the user's own between them are Mismatch. The average is
// over the ranks that still have data (DivideBy says how they count). After PyTorch's
// torch.distributed.algorithms.Join; there, SyncBatchNorm is excluded, and the optimizers of ranks
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
// It costs one call of 40 bytes a rank more before each of those calls.
#pragma once

#include <functional>
#include <memory>
#include <source_location>

namespace lockstep {

namespace internal {
class Replica;
}

// From DistributedDataParallel::join(), on all ranks; must not outlive the wrapper. If it goes
// without finish(), an exception say, this rank ends it alone, without communicating.
class [[nodiscard]] Join {
 public:
  explicit Join(std::shared_ptr<internal::Replica> replica);
  ~Join();
  Join(Join&&) noexcept = default;
  Join& operator=(Join&&) = delete;

  // When this rank's data are at their end; returns when all ranks' are. `after_backward` (on all
  // ranks or none) is called whenever the others have ended a backward that communicates, with
  // their averaged gradients in the parameters: with optimizer.step() there, all ranks' parameters
  // and optimizers stay the same. Without it, a rank's optimizer misses those steps, and its
  // parameters come from one that was there to the end. Gradients of accumulated backwards that
  // had not been communicated yet count in the others' next reduction. Collective; throws what the
  // communicator and `after_backward` throw.
  void finish(const std::function<void()>& after_backward = nullptr,
              std::source_location site = std::source_location::current());

 private:
  std::shared_ptr<internal::Replica> replica_;
};

}  // namespace lockstep
