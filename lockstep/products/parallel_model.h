// ParallelModel: a model of any modules that is trained by several ways of parallelism at once,
// from outside: its source stays as it is. Data, tensor, sequence rows, context, a pipeline and
// ZeRO each take a line of a plan.
//
//   const ModelPlan plan{.modules = {{"units.*.query", TensorStyle::kHeads, 12}, ...},
//                        .units = "units"};
//   ParallelModel model(gpt, comm, parse_parallelism("data=2,pipe=2,tensor=2"), plan,
//                       {.loss = cross_entropy, .inputs = ids, .targets = targets});
//   model.divided().make_optimizer(torch::optim::AdamWOptions(1e-4));
//   const double loss = model.step(ids, targets);    // the batch of this rank's row
//   model.divided().update({.max_norm = 1.0});
//
// The plan of modules is parallelize()'s (shard/parallelize.h). The numbers are those of one
// process with the batches of all rows end to end, except for the order of sums, where rows have
// equally many targets (otherwise see step()'s scale). This is checked before a model trains: its
// outputs and gradients on an example are compared with the whole model's.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/tensor/tensor_plan.h"
#include "lockstep/products/parallelism.h"
#include "lockstep/shard/divided_parameters.h"

namespace lockstep::inline v0 {

// How a model is divided and cut.
struct ModelPlan {
  std::vector<TensorRule> modules = {};  // names to styles
  // The child that a pipeline cuts: a torch::nn::Sequential, of whose children each stage has some,
  // in order. The forward of the model is that of this Sequential and nothing more. "": the model
  // is such a Sequential itself, or is not cut.
  std::string units = {};
};

// The options of a ParallelModel.
struct ParallelModelOptions {
  // Returns the mean over the targets of a micro-batch, a scalar, from the model's outputs and
  // their targets.
  std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)> loss;
  // Returns the weight of some targets in that mean, so that the loss of a batch is the mean of its
  // parts' losses by their weights. With torch's ignore_index it is the number of targets that are
  // not -100, with weights of classes their sum. Empty: the number of targets.
  std::function<double(const at::Tensor& targets)> count = {};
  // An example, the same on all ranks: a few rows, with sequences as long as those of batches.
  at::Tensor inputs, targets;
  // The largest difference of outputs, and of a parameter's gradient, from the whole model's on the
  // example, relative to the largest of its values. 0: 1e-8 in float64, 2e-3 in float32, 5e-2 in 16
  // bits.
  double tolerance = 0;
  PipelineDiscipline discipline = {};  // of the pipeline
};

// Collective: all ranks of `comm` call every function, except where it says that it does not
// communicate.
// Thread-safety: one thread, the communicator's.
class LOCKSTEP_API ParallelModel {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor& inputs)>;

  // `model` is a module's holder (TORCH_MODULE) whose forward takes a tensor, dim 0 the rows of a
  // batch, and gives one. At first every rank has the whole model, on the communicator's device,
  // and all get rank 0's values. Afterwards the model has this rank's slices, and other stages'
  // units have no memory. This class keeps it. Modules that are in evaluation mode stay so.
  //
  // Requires: what parallelize() does. With a pipeline: no parameter in units of two stages, and
  // rows between units of the example's shape but for dim 0. Buffers are each rank's own, and are
  // not saved. Along context, attention is at::scaled_dot_product_attention()
  // (shard/context_scope.h). Where modules drop, the default generators of the ranks along tensor
  // are in the same state before each step.
  // Throws: InvalidArgument before anything is sent: axes, a schedule, a cut or a ZeRO stage that
  // does not exist; the axis expert, which is for TransformerLm; parameters of several types, or in
  // two stages; statistics of a batch norm, which no checkpoint would have; ZeRO stage 3 on
  // devices, which divides units (parallel/zero). On all ranks alike: Mismatch where they differ;
  // what parallelize() refuses; a loss that is not such a mean; InvalidArgument where the divided
  // model's results differ from the whole one's, with the parameter and what to look at. The model
  // is then divided, and of no use.
  // Cost: one forward and backward of the example, whole and divided, at other values than the
  // model's, so that parameters that begin as zeros are compared too; a copy keeps the model's
  // values meanwhile.
  template <typename M>
  ParallelModel(M model, Communicator comm, const Parallelism& how, const ModelPlan& plan,
                const ParallelModelOptions& options)
      : ParallelModel(
            model.ptr(),
            [model](const at::Tensor& inputs) mutable -> at::Tensor {
              return model->forward(inputs);
            },
            std::move(comm), how, plan, options) {}
  ParallelModel(std::shared_ptr<torch::nn::Module> model, Forward forward, Communicator comm,
                const Parallelism& how, const ModelPlan& plan, const ParallelModelOptions& options);
  ParallelModel(ParallelModel&&) noexcept;
  ParallelModel& operator=(ParallelModel&&) noexcept;
  ~ParallelModel();

  // The next ones do not communicate.
  const Parallelism& parallelism() const;  // resolved
  const Mesh& mesh() const;                // its axes
  // The ranks that have batches of their own; a rank's number there is the number of its row.
  Communicator rows() const;
  std::string str() const;           // the mesh, and the units of each stage, in lines
  const Pipeline& pipeline() const;  // that runs the stages

  // The optimizer, clipping, checkpoints, and the whole model put together (divided_parameters.h).
  // Does not communicate.
  DividedParameters& divided();

  // Runs forward and backward of this row's batch in training mode, and returns its loss: the mean
  // over its targets, the same on all ranks of the row. Each of the row's ranks is given the whole
  // batch. Gradients are this row's times `scale` (targets * rows / all rows' targets where rows
  // have unequally many), and divided().update() averages them over the rows. The batch goes into
  // micro-batches in order, as evenly as possible.
  // Throws: InvalidArgument for a malformed batch, or a scale that is no number from 0 on; Mismatch
  // where the ranks of a row were given different ones (on devices: of different shapes), or where
  // modules drop and those along tensor would draw other masks.
  double step(const at::Tensor& inputs, const at::Tensor& targets, double scale = 1);
  // Returns the loss alone, in evaluation mode and without gradients.
  double evaluate(const at::Tensor& inputs, const at::Tensor& targets);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::inline v0
