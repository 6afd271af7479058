// ParallelLm: a language model that is trained by every way of parallelism at once: layers cut along the depth
// (pipeline) and across (tensor), batches along data, and ZeRO over those who average gradients.
//
//   LmParallelism how = parse_parallelism("data=2,pipe=2,tensor=2");
//   how.zero = 1;
//   ParallelLm model(config, comm, how);                      // 8 ranks; none has the whole
//   model.make_optimizer(torch::optim::AdamWOptions(1e-4));
//   const double loss = model.step({ids, targets});           // the batch of this rank's row
//   model.update({.max_norm = 1.0});
//
// The same numbers as one process with the batches of all rows end to end, but for the order of sums, where rows have
// as many targets (else: step()'s scale); a run repeats bit for bit. Each part is a room of its own (parallel/pipeline,
// tensor, zero), and can be used by itself; this is how they go together.
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
#include "lockstep/parallel/tensor/tensor_parts.h"
#include "lockstep/products/lm_parallelism.h"

namespace lockstep {

// As TransformerLm takes them: int64 [B, T], or [N] with lengths. The same on all ranks of a row, that is, along
// pipe, context and tensor.
//
// Best on the CPU: what is on a device is read first, and the host waits for it.
struct LmRowBatch {
  at::Tensor ids;
  at::Tensor targets;  // of the shape of ids, -100 where there is nothing to predict
  at::Tensor lengths = {};
};

struct ParallelLmOptions {
  // The whole model's values, a part at a time (TensorParts::fill). Empty: those that TransformerLm(config) would
  // have drawn; the ranks' default generators must stand at one state.
  ParameterParts values = {};
  at::ScalarType dtype = at::kFloat;  // of parameters; or kDouble
  // Of dropout's masks, each step's and row's its own: the same on all ranks, not 0.
  uint64_t dropout_seed = 1;
  PipelineDiscipline discipline = {};
  // Called with this rank's part before anything uses it, alike on all ranks: for hooks, such as
  // checkpoint_layers<LmUnit::Signature>(*lm, ...).
  std::function<void(TransformerLm& part)> prepare = {};
};

// What this rank has of a parameter.
struct LmParameterPart {
  std::string name;  // in the whole model
  at::Tensor tensor;
  PartSlice slice;             // of the whole one
  std::vector<int64_t> shape;  // of the whole one
  bool copy = false;  // a tied one's second place: it counts, is saved and gathered at the first
};

// Parameters that an optimizer has under options of their own.
struct LmParameterGroup {
  std::vector<std::string> names;                                 // in the whole model
  std::shared_ptr<const torch::optim::OptimizerOptions> options;  // of the algorithm's class
};

// Every function is collective over `comm` but where it says that it does not communicate. One thread, the
// communicator's. Parameters are on the communicator's device. Throws what the communicator and Pipeline throw.
class ParallelLm {
 public:
  // Keeps handles of `comm` and of the groups it makes. Throws InvalidArgument (check()) before anything is sent;
  // Mismatch where ranks differ in the configuration or in how they divide it.
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
  const std::vector<LmParameterPart>& parameters() const;
  std::string str() const;  // the mesh, and what each rank has, in lines

  // Forward and backward of this row's batch -> its loss, the mean over its targets, 0 where it has none (without the
  // routers' losses, which it learns from), the same on all ranks of the row; gradients are this row's times `scale` (targets * rows / all rows' targets where rows have unequally many), and are averaged over the rows by update(). Sequences go into
  // micro-batches in order, as evenly as they can; fewer sequences make fewer. Autocast around it is for the
  // forwards. Throws InvalidArgument for a batch that makes no sense, before anything is
  // sent; Mismatch where the ranks of a row were given different ones.
  double step(const LmRowBatch& batch, double scale = 1);
  // step() whose loss, float64 [1], stays on the communicator's device: the host does not wait for it.
  at::Tensor step_unread(const LmRowBatch& batch, double scale = 1);
  // The number of steps that dropout's masks are drawn for next: after load(), where it is to go on as it would have.
  void set_steps(uint64_t steps);
  uint64_t steps() const;  // does not communicate
  // The loss alone, in evaluation mode and without gradients.
  double evaluate(const LmRowBatch& batch);
  // What each token loses (TransformerLmImpl::scores()), likewise, in the order of ids, on all ranks of the row.
  TokenScores scores(const LmRowBatch& batch);
  // Multiplies the gradients that there are on this rank: for a loss that was multiplied after step(). Before
  // update(); does not communicate.
  void scale_gradients(double factor);
  // The same by one element, which the host does not wait for where it is on a device.
  void scale_gradients(const at::Tensor& factor);
  // Takes the gradients that there are out of grad(), in the order of parameters(), undefined where there is none.
  // Does not communicate.
  std::vector<at::Tensor> take_gradients();

  // Once, before the first update(): of all parameters that require a gradient, biases and norms without weight
  // decay; divided as parallelism().zero says.
  void make_optimizer(const optim::Algorithm& algorithm);
  // The same in these groups, alike on all ranks. A parameter that is in none stays as it is; its gradient is computed,
  // dropped, and no part of the norm. Throws InvalidArgument before anything is sent: a name that is none or is in two
  // groups, options of another class.
  void make_optimizer(const optim::Algorithm& algorithm,
                      const std::vector<LmParameterGroup>& groups);
  // Averages the gradients, clips them by the norm of the whole model's, and takes the step; all gradients are gone
  // afterwards. `loss_scale`: what step()'s losses were multiplied by. Where gradients are not finite: with a
  // loss_scale the step is left out on all ranks, otherwise Error.
  struct UpdateOptions {
    std::optional<double> max_norm = {};
    std::optional<double> loss_scale = {};
  };
  optim::StepResult update(const UpdateOptions& options);
  void set_learning_rate(double rate);  // does not communicate
  // The options of each group as the next update() takes them, after load() the checkpoint's, and others in their
  // place. The same on all ranks. Empty where no group has parameters of this rank. Do not communicate.
  using Options = std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>;
  Options options() const;
  void set_options(const Options& options);
  // Averages the gradients ahead of update(), for who looks at them: this rank's parts of the averages, which
  // update() will see. amp::GradScaler is to be made with the job's communicator.
  std::vector<at::Tensor> synchronize();
  void leave_out();  // an update() that is skipped: the gradients are dropped

  // While what it returns lives, each rank has its part of the model whole, where devices divide layers among ranks (zero
  // 3): for share(), and to evaluate what other ranks do not. Null where they are whole anyway. Collective; goes at the
  // same place on all ranks, before the next step.
  [[nodiscard]] std::shared_ptr<void> whole_parameters();

  // What this rank writes into a checkpoint of the job (checkpoint_writer.h): its share of the model and, after
  // make_optimizer(), of the optimizer's state, under the whole model's names (divided_state.h).
  Checkpoint share();
  // Takes them over from a checkpoint that was read with ModelForm::kSlices, whatever division wrote it. Throws
  // CheckpointError that begins with `source`. kModelAndConfig: the parameters alone; the optimizer's state stays.
  void load(const Checkpoint& checkpoint, const std::string& source,
            CheckpointParts parts = CheckpointParts::kAll);

  // The whole model's parameters on rank 0 of `comm`, new tensors, in the model's order; nothing on the others.
  NamedTensors gather();

  // What the routers of all layers did in the last step(), with the tokens of all rows, the same on all ranks; entropy
  // and balance are means over the micro-batches by their tokens, and over the ranks where the routers' losses have no
  // coefficient, since these are not added up then. Layers that have not counted yet are left out.
  std::vector<RouterStatistics> routers();

  // Bytes of this rank, activations left out. Do not communicate.
  struct Memory {
    int64_t parameters = 0, gradients = 0, state = 0, buffers = 0;
  };
  Memory memory() const;
  // The same after a step, from shapes alone. After make_optimizer().
  Memory planned_memory() const;
  // What this rank has called to average gradients and to share parameters, of each group of ranks that does; those
  // are not among mesh()'s own. After make_optimizer(), else nothing. Does not communicate.
  struct Averaging {
    int ranks = 1;
    CommunicatorStats stats = {};
  };
  std::vector<Averaging> averaging() const;
  // The pipeline's last step. Does not communicate.
  const Pipeline& pipeline() const;
  void count_activations();  // Pipeline's

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
