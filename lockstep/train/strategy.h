// Strategy: one way to train a model on the ranks of a job. Trainer, Accelerator and the recipes ask
// nothing else of it, so a new way of parallelism is one class that derives from this.
//
//   std::shared_ptr<Strategy> strategy = make_strategy("zero3");
//   StrategyModel model(net, strategy, comm);                       // rank 0's parameters go to all
//   const auto optimizer = strategy->make_optimizer(decay_groups(*net, options), options);
//   strategy->backward(loss(model(batch)));
//   strategy->step(*optimizer, {.max_norm = 1.0});
//
// One of one's own changes what differs; a whole one is in docs/trainer.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/sampler.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/nested.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/train/device_scalar.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/step_memory.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

struct StrategyStep {
  std::optional<double> max_norm = {};  // clip the gradients to this global norm
  // The gradients are scaled by it; its update() is part of the step.
  amp::GradScaler* scaler = nullptr;
  // The caller asks for grad_norm() where it logs, and check_steps() before it saves. So on a device, where an optimizer
  // can (flat/steps_on_device.h), the host does not wait for the norm, and the device leaves out a step whose norm is not
  // finite, which those two then throw for. Without it, and on the CPU, the step throws.
  bool reads_norm_later = false;
};

// For one model. Every function is called on all ranks in the same order and may communicate, where
// nothing else is said. One thread, the communicator's. Throws what the communicator throws.
class Strategy {
 public:
  using Tensors = std::vector<at::Tensor>;

  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  virtual ~Strategy() = default;

  // For messages and records: "ddp".
  virtual std::string name() const = 0;

  // Who has what, in lines for people, after set_up(): of those that divide a model over a mesh; "" of others. Does not
  // communicate.
  virtual std::string layout() const { return ""; }

  // With logical ranks (parallel/logical/logical_ranks.h): how many. A step of this rank is then of
  // several batches, one for each of its own (batches_per_step()), each through forward() and
  // backward() by itself; the loss is not divided. 0: there are none.
  virtual int64_t logical_ranks() const { return 0; }

  // The ranks that have data of their own: samplers deal to these. Once, before set_up(); all of
  // `comm` unless ranks work on one batch together.
  virtual Communicator data_ranks(const Communicator& comm) const { return comm; }

  // The ranks that evaluate samples of their own: all of `comm`, each by itself, where every rank has a whole model;
  // others evaluate what a rank of these does, together with it. After set_up().
  virtual Communicator evaluation_ranks(const Communicator& comm) const { return comm; }
  // Whether this rank's batches are not counted by another rank that has the same.
  virtual bool counts_batches() const { return true; }

  // Once, before anything that follows. The default: the ranks' models must agree in names, shapes
  // and dtypes (Mismatch names the first difference), rank 0's parameters and buffers go to all, and
  // bind() follows. Both arguments are kept.
  virtual void set_up(std::shared_ptr<torch::nn::Module> model, Communicator comm);
  // The same where all ranks have the same model and parameters already, and again for every
  // generation of ranks (recover/recovery.h), where rebinds(): buffers stay each rank's own, a step
  // that was under way is forgotten, and what stands on the former communicator goes, as far as it
  // is this object's. The default keeps both arguments.
  virtual void bind(std::shared_ptr<torch::nn::Module> model, Communicator comm);
  // Whether bind() is all that it takes to go on with other communicators: every rank has all
  // parameters and the optimizer's state, and step() does not communicate. Does not communicate.
  virtual bool rebinds() const { return false; }
  // The same for a model that was made without values: `initial` writes the elements
  // [begin, begin + part.numel()) of the parameter of that name into `part`, as ZeroOptions::initial does,
  // alike on all ranks. The default: every rank asks for all of them, then set_up(). zero1 to fsdp keep
  // it until make_optimizer(), where a rank asks for its part alone; no rank has the model before.
  using Initial =
      std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)>;
  virtual void set_up_undrawn(std::shared_ptr<torch::nn::Module> model, Communicator comm,
                              Initial initial);

  // An optimizer of the model's parameters in these groups, which lives as long as the training.
  // The default: optim::make_fused().
  virtual std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      std::vector<torch::optim::OptimizerParamGroup> groups, const optim::Algorithm& algorithm);
  // Of one that somebody else has made. Throws InvalidArgument where that cannot be.
  virtual void check_optimizer(const torch::optim::Optimizer& /*optimizer*/) const {}

  // A forward of `rows` samples: `compute` runs the module and gives the tensors of its output, in
  // order. Gives those that the caller is to go on with, as many.
  virtual Tensors forward(int64_t /*rows*/, const std::function<Tensors()>& compute) {
    return compute();
  }
  // Whether the backwards to come end with the gradients of all ranks, or only add up on this one.
  // Does not communicate; does not throw for true. Called by Accumulation.
  virtual void communicate(bool on) { communicates_ = on; }
  // The default: loss.backward(), then synchronize() where the backward communicates.
  virtual void backward(const at::Tensor& loss);
  // The gradients are all ranks' afterwards. Nothing where backward does that on the way.
  virtual void synchronize() {}
  // Clips, and takes the optimizer's step. Whether it was taken: with a scaler, one with infinite
  // gradients on any rank is not.
  virtual bool step(torch::optim::Optimizer& optimizer, const StrategyStep& options = {});
  // The gradients' global norm before clipping, of the last step(), where clipping has computed it: as any rank knows
  // it, since one that has come for another has taken no step yet. Throws what check_steps() throws.
  std::optional<double> grad_norm();
  // Throws Error on all ranks where on any a device has left out a step since the last call (reads_norm_later). Collective.
  void check_steps();
  // This rank's part of it, and that of a rank which goes back to an earlier step. Neither communicates.
  std::optional<double> own_grad_norm() const {
    return grad_norm_ ? std::optional(grad_norm_->value()) : std::nullopt;
  }
  void set_grad_norm(std::optional<double> norm) {
    grad_norm_ = norm ? std::optional<DeviceScalar>(*norm) : std::nullopt;
  }
  // Whether grad() is the whole gradient after backward, on every rank, for whoever looks at it; where
  // not, clipping is the step's alone.
  virtual bool has_whole_gradients() const { return true; }

  // What this rank writes of the optimizer's state into a checkpoint (checkpoint_writer.h): all ranks'
  // together are the whole. Views of the optimizer's own memory, unchanged until the next step. The
  // default: rank 0 has all. Does not communicate.
  virtual SlicedTensors optimizer_state(torch::optim::Optimizer& optimizer);
  // Takes over a whole state, on every rank the same, whichever strategy and number of ranks it is
  // from. Throws CheckpointError that begins with `source`.
  virtual void load_optimizer_state(torch::optim::Optimizer& optimizer, const SlicedTensors& state,
                                    const std::string& source);
  // While what it returns lives, every rank may read all parameters and run the model by itself, any
  // number of times: for evaluation and checkpoints. It goes before the next step, without
  // communicating, at the same place on all ranks. The default: null, they are always whole.
  [[nodiscard]] virtual std::shared_ptr<void> whole_parameters() { return nullptr; }
  // The ranks' buffers that training has moved apart, such as BatchNorm's running statistics, are rank 0's on all of
  // them: those that are saved. Nothing where the model is divided.
  void share_buffers();
  // Both, for whoever evaluates or saves: what is evaluated is bit for bit what is saved. Where it has_parts(), parameters
  // stay where they are: evaluation_ranks() make all ranks run the model in step, and each saves its parts.
  [[nodiscard]] std::shared_ptr<void> as_saved() {
    share_buffers();
    return has_parts() ? nullptr : whole_parameters();
  }
  // Whether each rank has memory for its parts of the parameters and for what it computes with, and not for all: on
  // devices, where layers are units (parallel/zero/zero_optimizer.h). After set_up(). A module that is on the host then
  // goes to comm.device() while set_up() and make_optimizer() divide it, so that no device has the whole.
  virtual bool has_parts() const { return false; }
  // The same before set_up(), of these.
  virtual bool divides(const torch::nn::Module& /*model*/, const Communicator& /*comm*/) const {
    return false;
  }
  // What has_parts() means for checkpoints: the names of the divided parameters, what this rank writes of them
  // (Checkpoint::model_slices), and what it takes over. The last is collective; throws CheckpointError that begins with
  // `source`.
  virtual std::set<std::string> divided_names() const { return {}; }
  virtual SlicedTensors own_parameters();
  virtual void load_parameters(const SlicedTensors& values, const std::string& source);
  // Bytes of this rank with an optimizer that make_optimizer() gave: planned from shapes and types, and what there is
  // after a step. The default: this rank has all. Activations are left out, but for memory() of a strategy whose
  // forward() has its backward in it, which alone knows them. Do not communicate.
  virtual StepMemory planned_memory(const torch::optim::Optimizer& optimizer) const;
  virtual StepMemory memory(torch::optim::Optimizer& optimizer);
  // Bytes that `forward`, which runs the model on a batch and gives what keeps its graph, leaves for its backward; where
  // forward() has its backward in it, the most that it has held. Before the first step, under whole_parameters(); of what
  // it has computed nothing is left (activation_plan.h). Communicates where the forward does.
  virtual int64_t bytes_left(const std::function<std::shared_ptr<void>()>& forward);
  // Into how many micro-batches it cuts a step's batch, of one size where they divide it. Does not communicate.
  virtual int64_t micro_batches() const { return 1; }
  // Whether the optimizer's state is divided among the ranks: then so is the work of writing a
  // large model.
  virtual bool divides_state() const { return false; }

  // Of one that does, and lets another rank's memory keep this rank's share of it (recover/rollback_recovery.h): all that
  // goes with this rank, as bytes (into uint8, 1-D), of an optimizer that make_optimizer() gave; and put back, in the
  // place of what bind() and make_optimizer() have begun with, on all ranks of which each gives its own. bind() then
  // takes a model whose parameters have no values. Writing does not communicate.
  virtual bool has_shares() const { return false; }
  virtual int64_t share_bytes(torch::optim::Optimizer& optimizer);
  virtual void write_share(torch::optim::Optimizer& optimizer, const at::Tensor& into);
  virtual void restore_share(torch::optim::Optimizer& optimizer, const at::Tensor& share);

  // Whether the model itself is divided, and its parameters here are names without values. Then a checkpoint is what
  // divided_state() of all ranks gives, Checkpoint::model_slices, optimizer and, of rank 0, files of its own;
  // load_divided_state() takes that over from one that was read with ModelForm::kSlices, kModelAndConfig: the
  // parameters alone. gathered_parameters() gives the whole model's on rank 0, new tensors, and nothing on the others;
  // where it has_parts(), those that are trained.
  // The others of these functions are not called then. A step is then of one forward and one backward: neither
  // accumulation nor a GradScaler, which comes too late.
  virtual bool divides_model() const { return false; }
  virtual Checkpoint divided_state();
  virtual void load_divided_state(const Checkpoint& checkpoint, const std::string& source,
                                  CheckpointParts parts);
  virtual NamedTensors gathered_parameters();

  // The streams that this rank's forwards draw from, uint8 [streams, bytes], for a checkpoint; and all
  // ranks', in rank order, put back. The default: the process's one; another number of ranks than
  // wrote them goes on with streams drawn from the first. Do not communicate. Throws CheckpointError
  // that begins with `source`.
  virtual at::Tensor random_states() const;
  virtual void set_random_states(const at::Tensor& all, const std::string& source);

  // A function that counts the batches taken so far, so that a rank which skips a step becomes
  // known. Does not communicate.
  virtual void follow(std::function<int64_t()> /*batches_taken*/) {}  // NOLINT: kept by others
  // Seconds so far that this rank has waited for others, in backward and step.
  virtual double waiting() const { return 0; }

 protected:
  // bind() of the base.
  void keep(std::shared_ptr<torch::nn::Module> model, Communicator comm) {
    model_ = std::move(model);
    comm_ = std::move(comm);
  }
  // Of set_up(). Throw InvalidArgument before it.
  torch::nn::Module& model() const;
  const std::shared_ptr<torch::nn::Module>& shared_model() const { return model_; }
  Communicator& comm();
  bool communicates() const { return communicates_; }

 private:
  friend class Accumulation;
  std::shared_ptr<torch::nn::Module> model_;
  std::optional<Communicator> comm_;
  std::optional<DeviceScalar> grad_norm_;
  DeviceScalar norms_;  // the sum of those that nobody has read: not finite where one is not
  bool communicates_ = true;
  int held_ = 0;  // Accumulations that live
};

// Those of this library:
//   ddp         DistributedDataParallel: buckets, averaged while backward runs
//   average     average_gradients after backward, as tutorial 000 does it
//   ring        the same by the chunked ring over isend and irecv
//   naive-ring  the same by the tutorial's ring
//   horovod     DistributedGradients: as they come, in an order that the ranks agree on
//   zero1       ZeroOptimizer: the optimizer's state divided among the ranks
//   zero2       ... and the gradients; every backward is reduced by itself
//   zero3       ... and one copy of the parameters a host
//   fsdp        ... which hosts divide too: a layer's come as it computes (ZeroUnits); as zero3 where the
//               model has no list of layers that are Hookable
const std::vector<std::string>& strategy_names();
// Whether ranks share copies of the parameters under it: zero3 and fsdp.
bool divides_parameters(std::string_view strategy);
// "naive_ring" and "zero" (zero1) are taken too, and "logical<n>", such as logical8: the same bits on
// any number of ranks up to n (parallel/logical/logical_ranks.h); each computes on one thread. Throws
// InvalidArgument with the list of names.
// Throws InvalidArgument too for options that a strategy has no use for.
struct StrategyOptions {
  // zero3 and fsdp: ZeroOptions::copies, which ranks share one copy of the parameters.
  std::vector<int> copies = {};
};
std::shared_ptr<Strategy> make_strategy(std::string_view given,
                                        const StrategyOptions& options = {});

// Throws InvalidArgument, in `who`'s name, for what a strategy that divides the model does not take.
void check_divided(const Strategy& strategy, const std::string& who, int64_t accumulation_steps,
                   bool float16);

// What a log says of a step: "learning_rate", and "grad_norm" where there is one. Collective.
Metrics update_figures(Strategy& strategy, double learning_rate);

// Batches that a step of each rank takes: 1 without logical ranks. Throws InvalidArgument where these
// cannot be shared equally.
int64_t batches_per_step(const Strategy& strategy, const Communicator& comm);
// Deals a data set of `size` samples in an order of its own every epoch, for batches of `batch_size`
// (with logical ranks: theirs): a DistributedSampler or LogicalSampler.
std::unique_ptr<data::Sampler> make_sampler(const Strategy& strategy, const Communicator& comm,
                                            int64_t size, int64_t batch_size, int64_t seed);

// While it lives, backwards only add up on this rank. Several may live at once.
class [[nodiscard]] Accumulation {
 public:
  explicit Accumulation(std::shared_ptr<Strategy> strategy) : strategy_(std::move(strategy)) {
    if (!strategy_) return;
    if (strategy_->held_ == 0) strategy_->communicate(false);
    ++strategy_->held_;
  }
  ~Accumulation() {
    if (strategy_ && --strategy_->held_ == 0) strategy_->communicate(true);
  }
  Accumulation(Accumulation&&) noexcept = default;
  Accumulation& operator=(Accumulation&&) = delete;

 private:
  std::shared_ptr<Strategy> strategy_;  // none: nothing is held back
};

// A model under a strategy: its forward, with any signature. M is a ModuleHolder or a
// std::shared_ptr to a module.
template <typename M>
class StrategyModel {
 public:
  // `initial`: the module was made without values, and gets them from it (Strategy::set_up_undrawn()).
  StrategyModel(M module, std::shared_ptr<Strategy> strategy, Communicator comm,
                Strategy::Initial initial = nullptr)
      : module_(std::move(module)), strategy_(std::move(strategy)) {
    std::shared_ptr<torch::nn::Module> model;
    if constexpr (requires { module_.ptr(); })
      model = module_.ptr();
    else
      model = module_;
    if (initial)
      strategy_->set_up_undrawn(std::move(model), std::move(comm), std::move(initial));
    else
      strategy_->set_up(std::move(model), std::move(comm));
  }

  // The strategy has the module already.
  StrategyModel(M module, std::shared_ptr<Strategy> strategy)
      : module_(std::move(module)), strategy_(std::move(strategy)) {}

  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }
  template <typename... Args>
  auto forward(Args&&... args) {
    using Result = std::decay_t<decltype(module_->forward(std::forward<Args>(args)...))>;
    std::optional<Result> result;
    const Strategy::Tensors outputs = strategy_->forward(flat::rows_of(args...), [&] {
      result.emplace(module_->forward(std::forward<Args>(args)...));
      return flat::tensors_of(*result);
    });
    flat::set_tensors(*result, outputs);
    return std::move(*result);
  }

  M& module() { return module_; }
  auto operator->() { return &*module_; }
  Strategy& strategy() { return *strategy_; }
  const std::shared_ptr<Strategy>& shared_strategy() const { return strategy_; }

 private:
  M module_;
  std::shared_ptr<Strategy> strategy_;
};

}  // namespace lockstep
