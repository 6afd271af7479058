// The parts of a Strategy (strategy.h): gradients, state and placement. A strategy of your own
// derives from the part in which it differs, and takes the other base classes.
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
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/train/device_scalar.h"
#include "lockstep/train/step_memory.h"
#include "lockstep/train/step_trace.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0 {

class Strategy;

// The abilities and requirements of a strategy, as data.
struct StrategyTraits {
  // The number of logical ranks (parallel/logical/logical_ranks.h); 0: there are none. A step of a
  // rank has one batch for each of its logical ranks (batches_per_step()). They are computed
  // separately, and the loss is not divided.
  int64_t logical_ranks = 0;
  // The number of micro-batches into which it cuts a step's batch, of equal sizes if possible.
  int64_t micro_batches = 1;
  // Whether Strategy::bind() suffices to continue with other communicators: every rank has all
  // parameters and the optimizer's state, and step() does not communicate.
  bool rebinds = false;
  // Whether grad() is the whole gradient after backward on every rank. If not, only the step can
  // clip.
  bool has_whole_gradients = true;
  // Whether the optimizer's state is divided among the ranks. The writing of a large model is then
  // divided as well.
  bool divides_state = false;
  // Whether each rank trains by itself for some steps, by the gradients of its own batches
  // (diloco): parameters and buffers then differ from rank to rank.
  bool trains_apart = false;
  // Whether the model itself is divided, so that its parameters here are names without values. One
  // call then computes its loss and the gradients (StrategyGradients::compute()). There is no
  // accumulation, and no GradScaler, which would scale too late.
  bool divides_model = false;
  // The next two are known after Strategy::set_up(). Whether each rank has memory only for its
  // parts of the parameters and for those that it computes with: on devices, if layers are units
  // (parallel/zero/zero_optimizer.h). A module on the host then moves to comm.device() while
  // set_up() and make_optimizer() divide it, so that no device has all of it.
  bool has_parts = false;
  // Whether this rank counts its batches. Of ranks that work on the same batch, one counts it.
  bool counts_batches = true;

  // Whether a checkpoint holds the parameters in slices.
  bool saves_slices() const { return divides_model || has_parts; }
};

// The common base of the parts, with the strategy's model and ranks.
// Throws: the accessors throw InvalidArgument before Strategy::set_up().
class LOCKSTEP_API StrategyPart {
 public:
  StrategyPart() = default;
  StrategyPart(const StrategyPart&) = delete;
  StrategyPart& operator=(const StrategyPart&) = delete;
  virtual ~StrategyPart() = default;

  // Called when there are a model and ranks, or other ranks than before. The part drops whatever
  // used the former communicator, and a step that had begun.
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

// The computation and the averaging of gradients.
class LOCKSTEP_API StrategyGradients : public StrategyPart {
 public:
  using Tensors = std::vector<at::Tensor>;

  // A forward of `rows` samples. `compute` runs the module and returns the tensors of its output,
  // in order. Returns as many tensors, with which the caller continues.
  virtual Tensors forward(int64_t /*rows*/, const std::function<Tensors()>& compute) {
    return compute();
  }
  // Whether the following backwards average the gradients over all ranks, or only add them up on
  // this one. Does not communicate, and does not throw for true. Called by Accumulation.
  virtual void communicate(bool on) { communicates_ = on; }
  // Computes the gradients of the loss that `loss` returns. `loss` runs the model's forward, or has
  // run it before; if traits().divides_model, it runs it once. `scaler`: the loss is scaled, for a
  // step with the scaler. The default calls backward().
  virtual void compute(const std::function<at::Tensor()>& loss, amp::GradScaler* scaler = nullptr);
  // Averages the gradients over all ranks. Does nothing if backward has done it.
  virtual void synchronize() {}
  // compute() of a loss that is made for a trial: what it allocates. `loss` gives it, and an owner of
  // what its caller would keep meanwhile, such as logits. The gradients are dropped, and nothing of
  // the computation remains (step_plan.h). `after_another`: an Accumulation's batch precedes it, whose
  // gradients it adds to. Communicates as compute() does.
  // Requires: before the first step.
  struct TriedLoss {
    at::Tensor loss;
    std::shared_ptr<void> kept = nullptr;
  };
  StepTrace tried(const std::function<TriedLoss()>& loss, bool after_another = false);
  // This rank's gradients, those that are defined. Does not communicate.
  virtual std::vector<at::Tensor> gradients() const;
  // Whether StepMemory::gradients is the memory of these; false: of buckets, whatever grad() is.
  virtual bool counts_grad() const { return true; }
  // The bytes of activations that the last compute() has held at once, if it alone knows them;
  // counted in the first one, and in tried(). Does not communicate.
  virtual std::optional<int64_t> held() const { return std::nullopt; }

  // The random streams of this rank's forwards for a checkpoint, uint8 [streams, bytes]; and the
  // restoring of all ranks' streams, in rank order. The default is the process's one stream; on
  // another number of ranks than wrote them, new streams are drawn from the first. They do not
  // communicate.
  // Throws: CheckpointError that begins with `source`.
  virtual at::Tensor random_states() const;
  virtual void set_random_states(const at::Tensor& all, const std::string& source);

  // Gives a function that counts the batches taken so far, so that a rank which skips a step is
  // noticed. Does not communicate.
  virtual void follow(std::function<int64_t()> /*batches_taken*/) {}  // NOLINT: kept by others
  // The seconds for which this rank has waited for others so far, in backward and step.
  virtual double waiting() const { return 0; }

 protected:
  // The default: loss.backward(), then synchronize() where the backward communicates.
  virtual void backward(const at::Tensor& loss);
  // The computation of tried(): calls compute() with the loss, then `done`, and then leaves
  // everything as it was before. The default drops the gradients.
  virtual void compute_in_vain(const std::function<at::Tensor()>& loss,
                               const std::function<void()>& done);

 private:
  bool communicates_ = true;
};

// How a step is taken.
struct StrategyStep {
  std::optional<double> max_norm = {};  // the gradients are clipped to this global norm
  // The scaler by which the gradients are scaled; its update() is part of the step.
  amp::GradScaler* scaler = nullptr;
  // The caller will call grad_norm() where it logs, and check_steps() before it saves and at the
  // end. The host then does not wait for the norm if the optimizer can decide on the device
  // (flat/steps_on_device.h): the device leaves out a step whose norm is not finite, and those two
  // functions throw. Otherwise, and on the CPU, the step throws.
  bool reads_norm_later = false;
};

// This rank's share of a divided state, of which another rank's memory keeps a copy
// (recover/rollback_recovery.h). write() copies it as bytes (into uint8, 1-D) and does not
// communicate. restore() replaces the state that Strategy::bind() and make_optimizer() have made;
// all ranks call it, each with its own share. bind() then takes a model whose parameters have no
// values. With traits().divides_model a share has all that the rank keeps of the model; otherwise
// buffers and parameters that no optimizer changes are not in it.
class LOCKSTEP_API StateShares {
 public:
  virtual ~StateShares() = default;
  virtual int64_t bytes() = 0;  // of this rank's share
  // Copies the share into as many bytes.
  virtual void write(const at::Tensor& into) = 0;
  // Takes the share back.
  virtual void restore(const at::Tensor& share) = 0;
};

// The optimizer, its step, and their part of a checkpoint.
class LOCKSTEP_API StrategyState : public StrategyPart {
 public:
  // Makes an optimizer of the model's parameters in these groups, for the whole training. The
  // default calls optim::make_fused().
  virtual std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      std::vector<torch::optim::OptimizerParamGroup> groups, const optim::Algorithm& algorithm);
  // Throws: InvalidArgument if the caller's optimizer should be the one of make_optimizer().
  virtual void check_optimizer(const torch::optim::Optimizer& /*optimizer*/) const {}

  // Clips, and takes the optimizer's step. Returns whether it was taken: with a scaler, a step with
  // infinite gradients on any rank is not.
  virtual bool step(torch::optim::Optimizer& optimizer, const StrategyStep& options = {});
  // The gradients' global norm before clipping in the last step(), if clipping has computed it on
  // any rank; a rank that replaces another one has taken no step yet.
  // Throws: as check_steps().
  std::optional<double> grad_norm();
  // Reports steps that a device has left out (reads_norm_later).
  // Collective: all ranks.
  // Throws: Error on all ranks if a step was left out on any since the last call.
  void check_steps();
  // This rank's norm of the last step; and the setting of it on a rank that returns to an earlier
  // step. They do not communicate.
  std::optional<double> own_grad_norm() const;
  void set_grad_norm(std::optional<double> norm);

  // This rank's part of the model and the optimizer's state in a checkpoint (checkpoint_writer.h);
  // the parts of all ranks are the whole. They are views of the original memory, unchanged until
  // the next step. The state has the names of the model's parameters (named_optimizer_state.h).
  // Does not communicate.
  virtual Checkpoint share(torch::optim::Optimizer& optimizer);
  // The optimizer's state in that part, by its parameters' positions. The default: rank 0 has all
  // of it.
  virtual SlicedTensors optimizer_state(torch::optim::Optimizer& optimizer);
  // Restores a checkpoint of any strategy and number of ranks. All ranks give the same checkpoint,
  // read with ModelForm::kSlices if traits().saves_slices(). kModelAndConfig, with `optimizer`
  // null, restores only the parameters.
  // Collective: all ranks.
  // Throws: CheckpointError that begins with `source`.
  virtual void load(torch::optim::Optimizer* optimizer, const Checkpoint& checkpoint,
                    const std::string& source, CheckpointParts parts);
  // The whole model's tensors on rank 0; the other ranks may have none or parts of them.
  // Requires: StrategyPlacement::as_saved().
  virtual NamedTensors gathered_parameters();
  // nullptr: the strategy has none.
  virtual StateShares* shares() { return nullptr; }

  // The bytes of this rank with an optimizer of make_optimizer(): planned from shapes and types,
  // and counted after a step. The default: this rank has everything. Activations are left out,
  // except in memory() of a strategy whose compute() alone knows them. They do not communicate.
  virtual StepMemory planned_memory(const torch::optim::Optimizer& optimizer) const;
  virtual StepMemory memory(torch::optim::Optimizer& optimizer);

 protected:
  // The other parts of share() and load(). The defaults are for ranks that all have the model.
  virtual void load_optimizer_state(torch::optim::Optimizer& optimizer, const SlicedTensors& state,
                                    const std::string& source);
  virtual void share_parameters(Checkpoint& checkpoint);
  virtual void load_parameters(const Checkpoint& checkpoint, const std::string& source);

 private:
  std::optional<DeviceScalar> grad_norm_;
  DeviceScalar norms_;  // the sum of norms since the last check; not finite if one is not
};

// The placement of data and parameters on the ranks.
class LOCKSTEP_API StrategyPlacement : public StrategyPart {
 public:
  // Writes the elements [begin, begin + part.numel()) of the named parameter into `part`, like
  // ZeroOptions::initial, with equal values on all ranks.
  using Initial =
      std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)>;

  // Gives the model its values, at the beginning of Strategy::set_up(). In the default, every rank
  // asks `initial`, if there is one, for all values, and all ranks get rank 0's parameters and
  // buffers.
  // Throws: the default throws Mismatch, which names the first difference, unless the ranks' models
  // have the same names, shapes and dtypes.
  virtual void set_up(const Initial& initial);
  // Lines for people about the division of a model over a mesh, after set_up(); "" if there is
  // none. Does not communicate.
  virtual std::string layout() const { return ""; }

  // The ranks that have data of their own, to which samplers deal: all of `comm` unless ranks work
  // on one batch together.
  virtual Communicator data_ranks(const Communicator& comm) const { return comm; }
  // The ranks that evaluate samples of their own, after set_up(). If every rank has a whole model,
  // these are all of `comm`. Otherwise the other ranks evaluate the same samples together with one
  // of these.
  virtual Communicator evaluation_ranks(const Communicator& comm) const { return comm; }
  // Whether traits().has_parts will be true for such a model. To be asked before set_up().
  virtual bool divides(const torch::nn::Module& /*model*/, const Communicator& /*comm*/) const {
    return false;
  }

  // While the returned object exists, every rank may read all parameters and run the model by
  // itself, for evaluation and checkpoints; where ranks train apart, the model is their average. All ranks must release it at the same place before the
  // next step, which does not communicate. The default returns null: the parameters are always
  // whole.
  [[nodiscard]] virtual std::shared_ptr<void> whole_parameters() { return nullptr; }
  // Gives all ranks rank 0's buffers, which are the saved ones. During training buffers such as
  // BatchNorm's running statistics become different. Does nothing if the model is divided, nor
  // where ranks train apart: whole_parameters() then averages them, too.
  virtual void share_buffers();
  // Both, for an evaluation or a save, so that the evaluated model is the saved one bit for bit. If
  // ranks have parts, the parameters stay in place: evaluation_ranks() makes all ranks run the
  // model in step, and each rank saves its parts.
  [[nodiscard]] std::shared_ptr<void> as_saved();
};

}  // namespace lockstep::inline v0
