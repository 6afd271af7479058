// ParallelLm: a language model that is trained by every way of parallelism at once: layers are cut
// along the depth (pipeline) and across (tensor), batches along data, and ZeRO works over the ranks
// that average gradients.
//
//   Parallelism how = parse_parallelism("data=2,pipe=2,tensor=2");
//   how.zero = 1;
//   ParallelLm model(config, comm, how);                      // 8 ranks; none has the whole
//   model.make_optimizer(torch::optim::AdamWOptions(1e-4));
//   const double loss = model.step({ids, targets});           // the batch of this rank's row
//   model.update({.max_norm = 1.0});
//
// The numbers are those of one process with the batches of all rows end to end, except for the
// order of sums, where rows have equally many targets (otherwise see step()'s scale). A run repeats
// bit for bit. Each way is a room of its own (parallel/pipeline, tensor, zero) and can be used by
// itself; this class combines them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/model/vocabulary_loss.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/products/parallelism.h"
#include "lockstep/shard/divided_parameters.h"

namespace lockstep::inline v0 {

// A batch as TransformerLm takes it: int64 [B, T], or [N] with lengths.
// Requires: the same on all ranks of a row, that is, along pipe, context and tensor.
// Cost: on a device the values are read first, and the host waits for them; pass CPU tensors.
struct LmRowBatch {
  at::Tensor ids;
  at::Tensor targets;  // of the shape of ids, -100 where there is nothing to predict
  at::Tensor lengths = {};
};

// The options of a ParallelLm.
struct ParallelLmOptions {
  // The whole model's values, a part at a time (TensorParts::fill). Empty: those that
  // TransformerLm(config) would have drawn; the ranks' default generators must then be in the same
  // state.
  ParameterParts values = {};
  at::ScalarType dtype = at::kFloat;  // the parameters'; or kDouble
  // The seed of dropout's masks, which differ for each step and row. It is the same on all ranks,
  // and not 0.
  uint64_t dropout_seed = 1;
  PipelineDiscipline discipline = {};  // of the pipeline
  // Called on all ranks with this rank's part before anything uses it, to install hooks such as
  // checkpoint_layers<LmUnit::Signature>(*lm, ...).
  std::function<void(TransformerLm& part)> prepare = {};
};

// Parameters are on the communicator's device.
// Collective: all ranks of `comm` call every function, except where it says that it does not
// communicate.
// Throws: what the communicator and Pipeline throw.
// Thread-safety: one thread, the communicator's.
class LOCKSTEP_API ParallelLm {
 public:
  // Keeps handles of `comm` and of the groups it makes.
  // Throws: InvalidArgument (check()) before anything is sent; Mismatch where ranks differ in the
  // configuration or in how they divide it.
  ParallelLm(const LmConfig& config, Communicator comm, const Parallelism& how,
             const ParallelLmOptions& options = {});
  ParallelLm(ParallelLm&&) noexcept;
  ParallelLm& operator=(ParallelLm&&) noexcept;
  ~ParallelLm();

  // The next ones do not communicate.
  const LmConfig& config() const;
  const Parallelism& parallelism() const;  // resolved
  const Mesh& mesh() const;                // its axes
  // The ranks that have batches of their own; a rank's number there is the number of its row.
  Communicator rows() const;
  // The units of this rank's stage have values; the others have names and no memory.
  TransformerLm& module();
  // The parameters of this rank's stage, in the model's order.
  const std::vector<DividedParameter>& parameters() const;
  std::string str() const;  // the mesh, and the units of each rank, in lines

  // Runs forward and backward of this row's batch, and returns its loss: the mean over its targets,
  // 0 without targets, without the routers' losses (which it learns from), and the same on all
  // ranks of the row. Gradients are this row's times `scale` (targets * rows / all rows' targets
  // where rows have unequally many), and update() averages them over the rows. Sequences go into
  // micro-batches in order, as evenly as possible; with fewer sequences there are fewer
  // micro-batches. Autocast around it applies to the forwards.
  // Throws: InvalidArgument for a malformed batch, before anything is sent; Mismatch where the
  // ranks of a row were given different ones.
  double step(const LmRowBatch& batch, double scale = 1);
  // As step(), but the loss, float64 [1], stays on the communicator's device, and the host does not
  // wait for it.
  at::Tensor step_unread(const LmRowBatch& batch, double scale = 1);
  // Sets the number of the step that dropout's masks are drawn for next. Call it after load(),
  // where training is to continue as it would have.
  void set_steps(uint64_t steps);
  uint64_t steps() const;  // does not communicate
  // Returns the loss alone, in evaluation mode and without gradients.
  double evaluate(const LmRowBatch& batch);
  // Returns the loss of each token (TransformerLmImpl::scores()), in evaluation mode, in the order
  // of ids, on all ranks of the row.
  TokenScores scores(const LmRowBatch& batch);
  // Multiplies this rank's gradients, for a loss that was multiplied after step(). Call it before
  // update(). Does not communicate.
  void scale_gradients(double factor);
  // The same by a tensor of one element; the host does not wait for it where it is on a device.
  void scale_gradients(const at::Tensor& factor);
  // Takes the gradients out of grad(), in the order of parameters(), undefined where there is none.
  // Does not communicate.
  std::vector<at::Tensor> take_gradients();

  // The parameters that require a gradient, and all functions on them but those below
  // (divided_parameters.h). divided() does not communicate.
  DividedParameters& divided();
  const DividedParameters& divided() const;
  void make_optimizer(const optim::Algorithm& algorithm);
  using UpdateOptions = DividedParameters::UpdateOptions;
  // Those of divided(): a step, this rank's share, and the whole model on rank 0.
  optim::StepResult update(const UpdateOptions& options);
  Checkpoint share();
  void load(const Checkpoint& checkpoint, const std::string& source,
            CheckpointParts parts = CheckpointParts::kAll);
  NamedTensors gather();  // the whole model's parameters on rank 0

  // DividedParameters' functions of these names, and steps(): all that training continues from but
  // the options and what a program has beside the model. With RollbackRecovery
  // (recover/rollback_recovery.h), a model that lost ranks is made again, with values that write
  // nothing, and takes its share back.
  int64_t share_bytes() const;
  void write_share(const at::Tensor& into) const;
  // write_share() into `memory`, an earlier share that is no longer needed, where that is large
  // enough, otherwise into new memory. Does not communicate.
  at::Tensor share_in(at::Tensor memory) const;
  void restore_share(const at::Tensor& share);

  // Returns the statistics of all layers' routers in the last step(), with the tokens of all rows,
  // the same on all ranks. Entropy and balance are means over the micro-batches weighted by their
  // tokens. They are also means over the ranks where the routers' losses have no coefficient, since
  // the losses are not added up then. Layers that have not counted yet are left out.
  std::vector<RouterStatistics> routers();

  // The pipeline, with its last step. Does not communicate.
  const Pipeline& pipeline() const;
  void count_activations();  // Pipeline::count_activations()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::inline v0
