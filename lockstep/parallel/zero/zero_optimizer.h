// ZeroOptimizer: SGD, Adam or AdamW whose state is divided among the ranks: ZeRO stage 1
// (Rajbhandari et al., arXiv:1910.02054).
//
// Parameters and their gradients lie in flat buckets, every bucket divided into as many equal parts
// as there are ranks. In backward, as a bucket's last gradient lands, the ranks' gradients are
// averaged so that each rank gets its own part only (reduce_scatter); step() updates that part,
// with the fused kernels of libtorch, and the parts are put together again (all_gather). So of the
// moments a rank keeps one N-th, and what travels is what an all_reduce would have moved.
//
//   ZeroOptimizer optimizer(comm, to_named_tensors(model->named_parameters()),
//                           torch::optim::AdamWOptions(1e-4));
//   loss.backward();   // gradients are averaged as they come
//   optimizer.step();  // and are gone afterwards
//
// The numbers are those of optim::FusedAdamW (FusedAdam, FusedSGD) over DistributedDataParallel's
// averages, but for the order in which the ranks' gradients are added up, and for parameters that
// no rank used: their gradient counts as zero here, so that momentum and decay move them.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/pending_gradients.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/fused_step.h"

namespace lockstep {

namespace internal {
class ZeroState;
}

// Whose options are all defaults' or a group's: its class is the kind of the optimizer.
using ZeroAlgorithm = optim::Algorithm;

struct ZeroOptions {
  // False: nothing is divided (stage 0). Gradients are all-reduced and every rank does the whole
  // step.
  bool shard = true;
  flat::BucketSizes bucket_sizes = {};  // bytes: the first bucket of each group, the others
  // False: nothing is reduced before step(), which allows any number of backwards a step, nested
  // ones (activation checkpointing) that reach a parameter twice included.
  bool overlap = true;
  // False: a parameter that no rank used since the last step is InvalidArgument, on all ranks.
  bool ignore_unused = true;
};

// Seconds of this rank since the optimizer was made.
struct ZeroTimes {
  double during = 0;     // in backward: putting gradients into buckets, starting reductions
  double waiting = 0;    // in step(): for reductions, and for the other ranks
  double updating = 0;   // in step(): the kernels
  double gathering = 0;  // in step(): putting the parameters together
};

// Parameter groups are those of torch: set_learning_rate() and changes of options() take effect at
// the next step. state() is empty: see state_on_root(). Groups cannot be added later.
//
// Memory: at construction the parameters move into flat buffers, symmetric memory where the backend
// has it, the same tensor objects, so make it after model->to(...), and only one a parameter. For a
// float32 parameter and Adam on N ranks: 4 bytes, 4 for the gradient, 8 / N for the moments; DDP
// has 16. Each is a leaf that requires a gradient; several dtypes are fine, each group and dtype
// has its own buckets, and state has its parameter's dtype. Frozen parameters are not given. Sparse
// gradients become dense.
//
// step() drops the gradients (zero_grad() need not be called, and does no harm before backward). A
// backward that threw at the same place on all ranks, elsewhere than in this optimizer's own hooks,
// can be repeated after zero_grad(); without that the next one throws InvalidArgument.
// Not copyable, not movable. One thread at a time. Hooks do nothing once the optimizer is gone.
class ZeroOptimizer final : public torch::optim::Optimizer,
                            public optim::FusedStep,
                            public PendingGradients {
 public:
  // Collective: compares names, shapes and dtypes among the ranks (Mismatch names the first
  // difference), makes a communicator of its own, and copies rank 0's values to all. Throws
  // InvalidArgument for a parameter that occurs twice or shares memory with another, is frozen, no
  // leaf, sparse or not floating-point.
  ZeroOptimizer(Communicator comm, const NamedTensors& parameters, const ZeroAlgorithm& algorithm,
                const ZeroOptions& options = {});
  // In groups, each with its own options or the defaults. `names`: of all parameters of all groups,
  // in order, for messages.
  ZeroOptimizer(Communicator comm, std::vector<torch::optim::OptimizerParamGroup> groups,
                std::vector<std::string> names, const ZeroAlgorithm& defaults,
                const ZeroOptions& options = {});
  ~ZeroOptimizer() override;
  ZeroOptimizer(const ZeroOptimizer&) = delete;
  ZeroOptimizer& operator=(const ZeroOptimizer&) = delete;

  // Collective. Clipping, unscaling and skipping are as FusedStep says, by the norm over all ranks'
  // parts: the same on all ranks, whatever their number to the last bits of a double, and the same
  // bits in every run. A skip is everybody's. Throws Mismatch on all ranks, naming them, if some
  // have done a backward since the last step and others have not.
  optim::StepResult step(const optim::StepOptions& options) override;
  at::Tensor step(LossClosure closure = nullptr) override;

  // Collective. Waits for the averages. grad() is then, of this rank's part, the average, and of
  // the rest unspecified; amp::GradScaler, made with the communicator, does what it should.
  void synchronize() override;
  // Collective. A step() that is skipped: drops the gradients.
  void leave_out() override;

  // While the guard lives, backward() does not communicate: gradients add up on this rank, and are
  // averaged by the next backward after it, or by step(). The same on all ranks.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(ZeroOptimizer& optimizer);
    ~NoSync();
    NoSync(NoSync&&) noexcept = default;
    NoSync& operator=(NoSync&&) = delete;

   private:
    std::shared_ptr<internal::ZeroState> state_;
  };
  NoSync no_sync() { return NoSync(*this); }

  // The whole state on rank 0, as optimizer_state() of torch::optim::SGD, Adam or AdamW over the
  // same groups gives it, for write_safetensors() or load_optimizer() there; empty on the others.
  // Collective. Takes that much memory on rank 0.
  Safetensors state_on_root();
  // Takes over what state_on_root() gave on any number of ranks, or optimizer_state() of a plain
  // optimizer of that kind; options included. All ranks call it with the same; each keeps its part.
  // Throws CheckpointError that begins with `source`; then nothing has changed.
  void load_state(const Safetensors& state, const std::string& source);

  // Elements of state that this rank keeps, padding included.
  int64_t state_numel() const;
  size_t bucket_count() const;
  ZeroTimes times() const;
  CommunicatorStats stats() const;  // of its own communicator

 private:
  std::shared_ptr<internal::ZeroState> state_;
};

}  // namespace lockstep
