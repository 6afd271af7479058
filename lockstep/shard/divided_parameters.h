// DividedParameters: the parameters of a model that is divided among the ranks of a mesh, whatever divides it: averaged
// where several ranks have them, clipped by the norm of the whole model's gradient, updated by one optimizer divided as
// ZeRO says, saved, loaded and put together. ParallelModel and ParallelLm (products/) stand on it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/parallel/tensor/tensor_parts.h"

namespace lockstep::inline v0 {

// This rank's part of a parameter.
struct DividedParameter {
  std::string name;  // in the whole model
  at::Tensor tensor;
  PartSlice slice;             // of the whole one, along the axis tensor
  std::vector<int64_t> shape;  // of the whole one
  // A tied one's second place: it counts, is saved and gathered at the first.
  bool copy = false;
  // Axes whose ranks have the same of it, and each a gradient of its own: the mean of these is the model's.
  std::vector<std::string> averaged = {"data", "context"};
};

// Parameters that an optimizer has under options of their own.
struct OptimizerGroup {
  std::vector<std::string> names;                                 // in the whole model
  std::shared_ptr<const torch::optim::OptimizerOptions> options;  // of the algorithm's class
};

// How a model was divided.
struct ModelDivision {
  std::string owner;                  // whose errors these are: "ParallelLm"
  Communicator comm;                  // all ranks
  Mesh mesh;                          // with the axes data, pipe, context, expert and tensor
  NamedShapes whole;                  // the whole model's, in its order
  TensorParts parts;                  // of them, along tensor
  std::vector<DividedParameter> own;  // of this rank, in the model's order
  // Places of a parameter of the whole model along axes other than tensor: {"pipe", 1}. Others: 0.
  std::function<std::map<std::string, int>(const std::string& name)> home;
  int zero = 0;  // ZeroOptions::stage, over the ranks that average
  at::ScalarType dtype = at::kFloat;
  // The model whose modules are units, where a device divides its layers among ranks (ZeroUnits).
  std::shared_ptr<torch::nn::Module> module = nullptr;
};

// Every function is collective over ModelDivision::comm but where it says that it does not communicate. One thread, the
// communicator's.
class LOCKSTEP_API DividedParameters {
 public:
  explicit DividedParameters(ModelDivision division);
  DividedParameters(DividedParameters&&) noexcept;
  DividedParameters& operator=(DividedParameters&&) noexcept;
  ~DividedParameters();

  // Do not communicate.
  const std::vector<DividedParameter>& own() const;
  const NamedShapes& whole_shapes() const;  // of the whole model, by name

  // Once, before the first update(): of all parameters that require a gradient, biases and norms (of one dimension)
  // without weight decay.
  void make_optimizer(const optim::Algorithm& algorithm);
  // The same in these groups, alike on all ranks. A parameter that is in none stays as it is; its gradient is computed,
  // dropped, and no part of the norm. One that requires no gradient stays as it is whatever group it is in. Throws InvalidArgument before anything is sent: a name that is none or is in two
  // groups, options of another class.
  void make_optimizer(const optim::Algorithm& algorithm, const std::vector<OptimizerGroup>& groups);
  // Averages the gradients, clips them by the norm of the whole model's, and takes the step; all gradients are gone
  // afterwards. `loss_scale`: what the losses were multiplied by. Where gradients are not finite: with a loss_scale the
  // step is left out on all ranks, otherwise Error.
  struct UpdateOptions {
    std::optional<double> max_norm = {};    // nullopt: no clipping
    std::optional<double> loss_scale = {};  // nullopt: 1
  };
  optim::StepResult update(const UpdateOptions& options);
  void set_learning_rate(double rate);  // does not communicate
  // The options of each group as the next update() takes them, after load() the checkpoint's, and others in their
  // place. The same on all ranks. Empty where no group has parameters of this rank. Do not communicate.
  using Options = std::vector<std::unique_ptr<torch::optim::OptimizerOptions>>;
  Options options() const;
  void set_options(const Options& options);
  // Averages the gradients ahead of update(), for code that looks at them: this rank's parts of the averages, which
  // update() will see.
  std::vector<at::Tensor> synchronize();
  void leave_out();  // an update() that is skipped: the gradients are dropped

  // While what it returns lives, each rank has its part of the model whole, where devices divide layers among ranks (zero
  // 3). Null where they are whole anyway. Goes at the same place on all ranks, before the next step.
  [[nodiscard]] std::shared_ptr<void> whole();

  // This rank's part of a checkpoint of the job (checkpoint_writer.h): its share of the model and, after
  // make_optimizer(), of the optimizer's state, under the whole model's names (divided_state.h).
  Checkpoint share();
  // Takes them over from a checkpoint that was read with ModelForm::kSlices, whatever division wrote it. Throws
  // CheckpointError that begins with `source`. kModelAndConfig: the parameters alone; the optimizer's state stays.
  void load(const Checkpoint& checkpoint, const std::string& source,
            CheckpointParts parts = CheckpointParts::kAll);
  // The whole model's parameters on rank 0, new tensors, in the model's order; nothing on the others.
  NamedTensors gather();

  // This rank's parameters and, after make_optimizer(), its part of the optimizer's state, as bytes (uint8, 1-D,
  // contiguous), without options: for a run that goes back to it, or whose rank is replaced
  // (recover/rollback_recovery.h). Call these between steps. The first two do not communicate.
  int64_t share_bytes() const;
  void write_share(const at::Tensor& into) const;  // of share_bytes()
  // Takes back what the rank with this number has written, of the same model, mesh, optimizer and options; returns
  // when all ranks' parts are there. Throws DataError for bytes of another division; this rank's are undefined then,
  // and the others wait.
  void restore_share(const at::Tensor& share);

  // Bytes of this rank, activations left out. Do not communicate.
  struct Memory {
    int64_t parameters = 0, gradients = 0, state = 0, buffers = 0;
  };
  Memory memory() const;          // of this rank, in bytes
  Memory planned_memory() const;  // after a step, from shapes alone; after make_optimizer()
  // This rank's calls to average gradients and to share parameters, for each group of ranks that does; the mesh's
  // communicators do not count them. After make_optimizer(), else nothing. Does not communicate.
  struct Averaging {
    int ranks = 1;
    CommunicatorStats stats = {};
  };
  std::vector<Averaging> averaging() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::inline v0
