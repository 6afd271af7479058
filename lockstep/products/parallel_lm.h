// ParallelLm: a language model that is trained by every way of parallelism at once: layers cut
// along the depth (pipeline) and across (tensor), batches along data, and ZeRO over the ranks that
// average gradients.
//
//   LmParallelism how = parse_parallelism("data=2,pipe=2,tensor=2");
//   how.zero = 1;
//   ParallelLm model(config, comm, how);                      // 8 ranks; none has the whole
//   model.make_optimizer(torch::optim::AdamWOptions(1e-4));
//   const double loss = model.step({ids, targets});           // the batch of this rank's row
//   model.update({.max_norm = 1.0});
//
// The same numbers as one process with the batches of all rows end to end, but for the order of
// sums, where rows have as many targets (else: step()'s scale); a run repeats bit for bit. Each
// part is a room of its own (parallel/pipeline, tensor, zero), and can be used by itself; this is
// how they go together.
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
#include "lockstep/flat/named_tensors.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/model/vocabulary_loss.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/products/lm_parallelism.h"
#include "lockstep/shard/divided_parameters.h"

namespace lockstep {

// As TransformerLm takes them: int64 [B, T], or [N] with lengths. The same on all ranks of a row,
// that is, along pipe, context and tensor.
//
// Best on the CPU: what is on a device is read first, and the host waits for it.
struct LmRowBatch {
  at::Tensor ids;
  at::Tensor targets;  // of the shape of ids, -100 where there is nothing to predict
  at::Tensor lengths = {};
};

struct ParallelLmOptions {
  // The whole model's values, a part at a time (TensorParts::fill). Empty: those that
  // TransformerLm(config) would have drawn; the ranks' default generators must stand at one state.
  ParameterParts values = {};
  at::ScalarType dtype = at::kFloat;  // of parameters; or kDouble
  // Of dropout's masks, each step's and row's its own: the same on all ranks, not 0.
  uint64_t dropout_seed = 1;
  PipelineDiscipline discipline = {};
  // Called with this rank's part before anything uses it, alike on all ranks: for hooks, such as
  // checkpoint_layers<LmUnit::Signature>(*lm, ...).
  std::function<void(TransformerLm& part)> prepare = {};
};

// Every function is collective over `comm` but where it says that it does not communicate. One
// thread, the communicator's. Parameters are on the communicator's device.
// Throws: what the communicator and Pipeline throw.
class ParallelLm {
 public:
  // Keeps handles of `comm` and of the groups it makes.
  // Throws: InvalidArgument (check()) before anything is sent; Mismatch where ranks differ in the
  // configuration or in how they divide it.
  ParallelLm(const LmConfig& config, Communicator comm, const LmParallelism& how,
             const ParallelLmOptions& options = {});
  ParallelLm(ParallelLm&&) noexcept;
  ParallelLm& operator=(ParallelLm&&) noexcept;
  ~ParallelLm();

  // Do not communicate.
  const LmConfig& config() const;
  const LmParallelism& parallelism() const;  // resolved
  const Mesh& mesh() const;
  // Who has batches of its own: a rank's number there says which row it is in.
  Communicator rows() const;
  // Units of this rank's stage have values; the others are names without memory.
  TransformerLm& module();
  // Of this rank's stage, in the model's order.
  const std::vector<DividedParameter>& parameters() const;
  std::string str() const;  // the mesh, and what each rank has, in lines

  // Forward and backward of this row's batch -> its loss, the mean over its targets, 0 where it has
  // none (without the routers' losses, which it learns from), the same on all ranks of the row;
  // gradients are this row's times `scale` (targets * rows / all rows' targets where rows have
  // unequally many), and are averaged over the rows by update(). Sequences go into micro-batches in
  // order, as evenly as they can; fewer sequences make fewer. Autocast around it is for the
  // forwards.
  // Throws: InvalidArgument for a batch that makes no sense, before anything is sent; Mismatch
  // where the ranks of a row were given different ones.
  double step(const LmRowBatch& batch, double scale = 1);
  // step() whose loss, float64 [1], stays on the communicator's device: the host does not wait for
  // it.
  at::Tensor step_unread(const LmRowBatch& batch, double scale = 1);
  // The number of steps that dropout's masks are drawn for next: after load(), where it is to go on
  // as it would have.
  void set_steps(uint64_t steps);
  uint64_t steps() const;  // does not communicate
  // The loss alone, in evaluation mode and without gradients.
  double evaluate(const LmRowBatch& batch);
  // What each token loses (TransformerLmImpl::scores()), likewise, in the order of ids, on all
  // ranks of the row.
  TokenScores scores(const LmRowBatch& batch);
  // Multiplies the gradients that there are on this rank: for a loss that was multiplied after
  // step(). Before update(); does not communicate.
  void scale_gradients(double factor);
  // The same by one element, which the host does not wait for where it is on a device.
  void scale_gradients(const at::Tensor& factor);
  // Takes the gradients that there are out of grad(), in the order of parameters(), undefined where
  // there is none. Does not communicate.
  std::vector<at::Tensor> take_gradients();

  // Of all parameters that require a gradient; and all else that is done with the parameters, but
  // for what is here (divided_parameters.h). divided() does not communicate.
  DividedParameters& divided();
  const DividedParameters& divided() const;
  void make_optimizer(const optim::Algorithm& algorithm);
  using UpdateOptions = DividedParameters::UpdateOptions;
  optim::StepResult update(const UpdateOptions& options);
  Checkpoint share();
  void load(const Checkpoint& checkpoint, const std::string& source,
            CheckpointParts parts = CheckpointParts::kAll);
  NamedTensors gather();

  // What the routers of all layers did in the last step(), with the tokens of all rows, the same on
  // all ranks; entropy and balance are means over the micro-batches by their tokens, and over the
  // ranks where the routers' losses have no coefficient, since these are not added up then. Layers
  // that have not counted yet are left out.
  std::vector<RouterStatistics> routers();

  // The pipeline's last step. Does not communicate.
  const Pipeline& pipeline() const;
  void count_activations();  // Pipeline's

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
