// What a Strategy (strategy.h) is made of: gradients, state and placement. A way of parallelism of
// one's own derives from the part in which it differs, and takes the others as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/train/device_scalar.h"
#include "lockstep/train/step_memory.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

class Strategy;

// What a strategy can do and what it asks for, as data.
struct StrategyTraits {
  // With logical ranks (parallel/logical/logical_ranks.h): how many. A step of a rank is then of
  // several batches, one for each of its own (batches_per_step()), each computed by itself; the
  // loss is not divided. 0: there are none.
  int64_t logical_ranks = 0;
  // Into how many micro-batches it cuts a step's batch, of one size where they divide it.
  int64_t micro_batches = 1;
  // Whether Strategy::bind() is all that it takes to go on with other communicators: every rank has
  // all parameters and the optimizer's state, and step() does not communicate.
  bool rebinds = false;
  // Whether grad() is the whole gradient after backward, on every rank, for code that looks at it;
  // where not, clipping is the step's alone.
  bool has_whole_gradients = true;
  // Whether the optimizer's state is divided among the ranks: then so is the work of writing a
  // large model.
  bool divides_state = false;
  // Whether the model itself is divided, and its parameters here are names without values. Its loss
  // and the gradients are then computed by one call (StrategyGradients::compute()): neither
  // accumulation nor a GradScaler, which comes too late.
  bool divides_model = false;
  // The next two are known after Strategy::set_up(). Whether each rank has memory for its parts of
  // the parameters and for what it computes with, and not for all: on devices, where layers are
  // units (parallel/zero/zero_optimizer.h). A module that is on the host then goes to comm.device()
  // while set_up() and make_optimizer() divide it, so that no device has the whole.
  bool has_parts = false;
  // Whether this rank's batches are not counted by another rank that has the same.
  bool counts_batches = true;

  // Whether a checkpoint holds the parameters in slices.
  bool saves_slices() const { return divides_model || has_parts; }
};

// What the parts have in common: the strategy's model and ranks. They throw InvalidArgument before
// Strategy::set_up().
class StrategyPart {
 public:
  StrategyPart() = default;
  StrategyPart(const StrategyPart&) = delete;
  StrategyPart& operator=(const StrategyPart&) = delete;
  virtual ~StrategyPart() = default;

  // The model and the ranks are there, or other ones: what stands on the former communicator goes,
  // and a step that was under way is forgotten.
  virtual void bind() {}

 protected:
  const std::string& name() const;
  torch::nn::Module& model() const;
  const std::shared_ptr<torch::nn::Module>& shared_model() const;
  Communicator& comm() const;
  StrategyTraits& traits() const;
  Strategy& strategy() const { return *strategy_; }

 private:
  friend class Strategy;
  Strategy* strategy_ = nullptr;
};

// What goes around forward and backward.
class StrategyGradients : public StrategyPart {
 public:
  using Tensors = std::vector<at::Tensor>;

  // A forward of `rows` samples: `compute` runs the module and gives the tensors of its output, in
  // order. Gives those that the caller is to go on with, as many.
  virtual Tensors forward(int64_t /*rows*/, const std::function<Tensors()>& compute) {
    return compute();
  }
  // Whether the backwards to come end with the gradients of all ranks, or only add up on this one.
  // Does not communicate; does not throw for true. Called by Accumulation.
  virtual void communicate(bool on) { communicates_ = on; }
  // Computes the gradients of the loss that `loss` gives, which runs the model's forward or has run
  // it before; where traits().divides_model, it runs it, once. `scaler`: they are those of the
  // scaled loss, for a step with it. The default: backward() of that.
  virtual void compute(const std::function<at::Tensor()>& loss, amp::GradScaler* scaler = nullptr);
  // The gradients are all ranks' afterwards. Nothing where backward does that on the way.
  virtual void synchronize() {}
  // Bytes that `forward`, which runs the model on a batch and gives what keeps its graph, leaves
  // for its backward; where compute() alone knows them, the most that it has held. Before the first
  // step, under whole_parameters(); of what it has computed nothing is left (activation_plan.h).
  // Communicates where the forward does.
  virtual int64_t bytes_left(const std::function<std::shared_ptr<void>()>& forward);

  // The streams that this rank's forwards draw from, uint8 [streams, bytes], for a checkpoint; and
  // all ranks', in rank order, put back. The default: the process's one; another number of ranks
  // than wrote them goes on with streams drawn from the first. Do not communicate. Throws
  // CheckpointError that begins with `source`.
  virtual at::Tensor random_states() const;
  virtual void set_random_states(const at::Tensor& all, const std::string& source);

  // A function that counts the batches taken so far, so that a rank which skips a step becomes
  // known. Does not communicate.
  virtual void follow(std::function<int64_t()> /*batches_taken*/) {}  // NOLINT: kept by others
  // Seconds so far that this rank has waited for others, in backward and step.
  virtual double waiting() const { return 0; }

 protected:
  // The default: loss.backward(), then synchronize() where the backward communicates.
  virtual void backward(const at::Tensor& loss);

 private:
  bool communicates_ = true;
};

struct StrategyStep {
  std::optional<double> max_norm = {};  // clip the gradients to this global norm
  // The gradients are scaled by it; its update() is part of the step.
  amp::GradScaler* scaler = nullptr;
  // The caller asks for grad_norm() where it logs, and check_steps() before it saves. So on a
  // device, where an optimizer can (flat/steps_on_device.h), the host does not wait for the norm,
  // and the device leaves out a step whose norm is not finite, which those two then throw for.
  // Without it, and on the CPU, the step throws.
  bool reads_norm_later = false;
};

// Of a state that another rank's memory keeps this rank's share of (recover/rollback_recovery.h):
// all that goes with this rank, as bytes (into uint8, 1-D); and put back, in the place of what
// Strategy::bind() and make_optimizer() have begun with, on all ranks of which each gives its own.
// bind() then takes a model whose parameters have no values. Writing does not communicate.
class StateShares {
 public:
  virtual ~StateShares() = default;
  virtual int64_t bytes() = 0;
  virtual void write(const at::Tensor& into) = 0;
  virtual void restore(const at::Tensor& share) = 0;
};

// The optimizer, its step, and what a checkpoint holds of both.
class StrategyState : public StrategyPart {
 public:
  // An optimizer of the model's parameters in these groups, which lives as long as the training.
  // The default: optim::make_fused().
  virtual std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      std::vector<torch::optim::OptimizerParamGroup> groups, const optim::Algorithm& algorithm);
  // Of one that the caller has. Throws InvalidArgument where it must be the one that
  // make_optimizer() gave.
  virtual void check_optimizer(const torch::optim::Optimizer& /*optimizer*/) const {}

  // Clips, and takes the optimizer's step. Whether it was taken: with a scaler, one with infinite
  // gradients on any rank is not.
  virtual bool step(torch::optim::Optimizer& optimizer, const StrategyStep& options = {});
  // The gradients' global norm before clipping, of the last step(), where clipping has computed it:
  // as any rank knows it, since one that has come for another has taken no step yet. Throws what
  // check_steps() throws.
  std::optional<double> grad_norm();
  // Throws Error on all ranks where on any a device has left out a step since the last call
  // (reads_norm_later). Collective.
  void check_steps();
  // This rank's part of it, and that of a rank which goes back to an earlier step. Neither
  // communicates.
  std::optional<double> own_grad_norm() const;
  void set_grad_norm(std::optional<double> norm);

  // What this rank writes of the model and the optimizer's state into a checkpoint
  // (checkpoint_writer.h): all ranks' together are the whole. Views of their own memory, unchanged
  // until the next step. The state is by the names of the model's parameters
  // (named_optimizer_state.h). Does not communicate.
  virtual Checkpoint share(torch::optim::Optimizer& optimizer);
  // Of that the optimizer's state, by its parameters' positions. The default: rank 0 has all.
  virtual SlicedTensors optimizer_state(torch::optim::Optimizer& optimizer);
  // Takes it over, on every rank the same, whichever strategy and number of ranks it is from; it
  // was read with ModelForm::kSlices where traits().saves_slices(). kModelAndConfig, with
  // `optimizer` null: the parameters alone. Collective. Throws CheckpointError that begins with
  // `source`.
  virtual void load(torch::optim::Optimizer* optimizer, const Checkpoint& checkpoint,
                    const std::string& source, CheckpointParts parts);
  // The whole model's tensors on rank 0, under StrategyPlacement::as_saved(); nothing or parts of
  // them on the others.
  virtual NamedTensors gathered_parameters();
  // Of a strategy that has them; nullptr: there are none.
  virtual StateShares* shares() { return nullptr; }

  // Bytes of this rank with an optimizer that make_optimizer() gave: planned from shapes and types,
  // and what there is after a step. The default: this rank has all. Activations are left out, but
  // for memory() of a strategy whose compute() alone knows them. Do not communicate.
  virtual StepMemory planned_memory(const torch::optim::Optimizer& optimizer) const;
  virtual StepMemory memory(torch::optim::Optimizer& optimizer);

 protected:
  // The other parts of share() and load(). The defaults: each rank has the model.
  virtual void load_optimizer_state(torch::optim::Optimizer& optimizer, const SlicedTensors& state,
                                    const std::string& source);
  virtual void share_parameters(Checkpoint& checkpoint);
  virtual void load_parameters(const Checkpoint& checkpoint, const std::string& source);

 private:
  std::optional<DeviceScalar> grad_norm_;
  DeviceScalar norms_;  // the sum of those that nobody has read: not finite where one is not
};

// Who has data and who has parameters.
class StrategyPlacement : public StrategyPart {
 public:
  // Writes the elements [begin, begin + part.numel()) of the parameter of that name into `part`, as
  // ZeroOptions::initial does, alike on all ranks.
  using Initial =
      std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)>;

  // The model's values, where Strategy::set_up() begins. The default: every rank asks `initial`, if
  // there is one, for all of them; the ranks' models must agree in names, shapes and dtypes
  // (Mismatch names the first difference), and rank 0's parameters and buffers go to all.
  virtual void set_up(const Initial& initial);
  // Who has what, in lines for people, after set_up(): of those that divide a model over a mesh; ""
  // of others. Does not communicate.
  virtual std::string layout() const { return ""; }

  // The ranks that have data of their own: samplers deal to these. Once, before set_up(); all of
  // `comm` unless ranks work on one batch together.
  virtual Communicator data_ranks(const Communicator& comm) const { return comm; }
  // The ranks that evaluate samples of their own: all of `comm`, each by itself, where every rank
  // has a whole model; others evaluate what a rank of these does, together with it. After set_up().
  virtual Communicator evaluation_ranks(const Communicator& comm) const { return comm; }
  // Whether it will have parts of such a model (StrategyTraits::has_parts), before set_up().
  virtual bool divides(const torch::nn::Module& /*model*/, const Communicator& /*comm*/) const {
    return false;
  }

  // While what it returns lives, every rank may read all parameters and run the model by itself,
  // any number of times: for evaluation and checkpoints. It goes before the next step, without
  // communicating, at the same place on all ranks. The default: null, they are always whole.
  [[nodiscard]] virtual std::shared_ptr<void> whole_parameters() { return nullptr; }
  // The ranks' buffers that training has moved apart, such as BatchNorm's running statistics, are
  // rank 0's on all of them: those that are saved. Nothing where the model is divided.
  void share_buffers();
  // Both, for an evaluation or a save: what is evaluated is bit for bit what is saved. Where ranks
  // have parts, parameters stay where they are: evaluation_ranks() make all ranks run the model in
  // step, and each saves its parts.
  [[nodiscard]] std::shared_ptr<void> as_saved();
};

}  // namespace lockstep
