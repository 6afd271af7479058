// Accelerator: your own training loop on several ranks, in mixed precision, with accumulated
// gradients, as Hugging Face accelerate has it.
//
//   Accelerator accelerator({.mixed_precision = "bf16"});
//   auto [model, optimizer, loader, dev_loader] =
//       accelerator.prepare(bert, adamw, train_loader, plain_dev_loader);
//   for (auto& batch : loader) {
//     optimizer.zero_grad();
//     auto loss = cross_entropy(model(batch.input_ids, batch.attention_mask), batch.labels);
//     accelerator.backward(loss);
//     optimizer.step();
//   }
//
// Lightning Fabric's words for the same: launch() is launch::spawn() or `lockstep run`, setup() is
// prepare(model, optimizer), setup_dataloaders() is prepare(loader), backward() is backward().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/data/loader.h"
#include "lockstep/flat/module_pointer.h"
#include "lockstep/train/accelerator_state.h"
#include "lockstep/train/prepared.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/step_memory.h"

namespace lockstep {

struct AcceleratorOptions {
  std::string mixed_precision = "no";  // "no", "bf16", "fp16"
  int64_t gradient_accumulation_steps = 1;
  // make_strategy("ddp"); for one model. One that divides the model over a mesh
  // (lm_mesh_strategy.h), pipelines included, takes neither gradient_accumulation_steps nor fp16;
  // losses are those of the model's forward with targets, within backward([&] { return loss; }).
  std::shared_ptr<Strategy> strategy = nullptr;
};

// Not copyable. One thread, the communicator's. "Collective": on all ranks.
class Accelerator {
 public:
  // Joins the job as init() does. Throws InvalidArgument, and what init() throws.
  explicit Accelerator(const AcceleratorOptions& options = {});
  Accelerator(Communicator comm, const AcceleratorOptions& options);
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // What is given, made fit for several ranks; a tuple of as many, in order:
  //   a module holder   PreparedModel: under the strategy, with autocast
  //   an optimizer      (torch's or ours, referred to) PreparedOptimizer: steps where gradients
  //                     were averaged, in fp16 through a GradScaler
  //   a data::Loader    (referred to, with its sampler and data set) PreparedLoader: this rank's
  //                     batches of it
  // Collective where a model is among them.
  template <typename... Things>
  auto prepare(Things&... things) {
    return std::tuple{prepare_one(things)...};
  }

  // loss.backward(), the loss divided by the steps of this accumulation (accumulate()), in fp16
  // scaled. Collective where gradients are averaged.
  void backward(const at::Tensor& loss) {
    state_->backward([&] { return loss; }, {});
  }
  // The same of the loss that `loss` computes: forward and backward by one call, which a model that
  // ranks divide asks for. Gives the loss, without its graph.
  at::Tensor backward(const std::function<at::Tensor()>& loss) {
    return state_->backward(loss, {});
  }
  // The same where batches count unequally, as those of a loss over tokens do. `share`: the part
  // that this batch's loss has in the mean over the whole step, all its batches and ranks (of those
  // that have batches of their own); the shares of a step add up to 1, and a batch without a target
  // has 0, which adds nothing if its loss's gradient is a number (cross entropy's is; a mean made
  // by hand divides by max(targets, 1)). Throws InvalidArgument for a share that is no number, as
  // in a step without a target:
  //   accelerator.backward(loss, targets / targets_of_the_step);
  void backward(const at::Tensor& loss, double share) {
    state_->backward([&] { return loss; }, share);
  }
  at::Tensor backward(const std::function<at::Tensor()>& loss, double share) {
    return state_->backward(loss, share);
  }

  // While the guard lives, a step of an accumulation: gradients are averaged, and optimizers take
  // steps, in every gradient_accumulation_steps-th one, and in the last of a loader's epoch.
  //   for (auto& batch : loader) { const auto guard = accelerator.accumulate(model); ... }
  template <typename M>
  Accumulation accumulate(PreparedModel<M>& model) {
    state_->count_step();
    return state_->synchronizes() ? Accumulation(nullptr) : model.no_sync();
  }
  bool sync_gradients() const { return state_->synchronizes(); }

  // Clips the gradients to a global norm, where they were averaged; gives the norm before (0
  // elsewhere). Throws InvalidArgument where the strategy divides the gradients (zero1 to zero3, a
  // mesh): optimizer.step(max_norm) clips there.
  double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm) {
    return state_->clip(parameters, max_norm);
  }

  // Of tensors of one shape [k, ...] on all ranks: [ranks * k, ...]. Collective.
  at::Tensor gather(const at::Tensor& tensor);
  // The same for outputs of a prepared loader's batch, of the ranks that have batches of their own:
  // what the last step repeats to fill batches is left out, so that all steps together give every
  // sample once. Collective.
  at::Tensor gather_for_metrics(const at::Tensor& tensor);
  // The sum or mean over all ranks, also over those that work on one batch, a new tensor.
  // `reduction`: "sum", "mean". Collective.
  at::Tensor reduce(const at::Tensor& tensor, const std::string& reduction = "sum");
  void wait_for_everyone();

  bool is_main_process() const { return comm().rank() == 0; }
  bool is_local_main_process() const { return comm().local_rank() == 0; }
  int process_index() const { return comm().rank(); }
  int local_process_index() const { return comm().local_rank(); }
  int num_processes() const { return comm().size(); }
  at::Device device() const { return comm().device(); }
  // A line on stdout, from the main process alone.
  void print(const std::string& line) const;
  Communicator& comm() { return state_->comm; }
  // For an optimizer that the strategy makes: after prepare() had the model.
  Strategy& strategy() { return *state_->strategy; }
  const Communicator& comm() const { return state_->comm; }

  template <typename M>
  M& unwrap_model(PreparedModel<M>& model) {
    return model.module();
  }
  // The model as a checkpoint directory, whole also where ranks divide it: rank 0 then takes all of
  // it into its memory. Collective.
  template <typename M>
  void save_model(PreparedModel<M>& model, const std::filesystem::path& path,
                  const CheckpointFiles& files = {}) {
    lockstep::save_model(model.strategy(), files, path);
  }

  // Everything that was prepared (at most one model and one optimizer), scaler, generators of all
  // ranks, and where loaders stand: a run that load_state()s goes on bit for bit. After it, a loop
  // over a loader begins after the batches that were taken of its epoch. Another number of ranks
  // goes on to rounding, with random streams of its own, where batch size times ranks has stayed;
  // the loop is InvalidArgument where that left an epoch other batches. Between steps. Collective.
  // save_state() throws what CheckpointWriter::wait() throws, load_state() CheckpointError.
  void save_state(const std::filesystem::path& path, const CheckpointFiles& files = {}) {
    state_->save(path, files);
  }
  void load_state(const std::filesystem::path& path) { state_->load(path); }

  // Whether the loop should save and end: SIGTERM or SIGUSR1 has come to any rank since the first
  // call. The same on all ranks. From the first call on the process listens (stop_signals.h); most
  // calls just count (stop_agreement.h), so call it after every step. Collective.
  //   if (accelerator.should_stop()) { accelerator.save_state("last"); break; }
  bool should_stop() { return state_->stop_signal() != 0; }

  // What a step takes of this rank's memory, once prepare() has had the model and the optimizer:
  // planned from shapes and types, without activations; and what there is after a step, with what
  // the first forward has left. to_text() and memory_svg() (memory_report.h) say and draw them. Do
  // not communicate. Throw InvalidArgument.
  StepMemory planned_memory() const { return state_->planned_memory(); }
  StepMemory memory() const { return state_->memory(); }

 private:
  template <typename T>
  auto prepare_one(T& thing) {
    if constexpr (std::is_base_of_v<torch::optim::Optimizer, T>) {
      state_->add(thing);
      return PreparedOptimizer(thing, state_);
    } else if constexpr (requires { thing.batches_taken(); }) {
      return PreparedLoader(thing, state_);
    } else {
      static_assert(
          ModulePointer<T>,
          "Accelerator::prepare() takes a module's holder (TORCH_MODULE), an optimizer or a "
          "data::Loader");
      state_->add(*thing);
      return PreparedModel<T>(thing, state_);
    }
  }

  std::shared_ptr<AcceleratorState> state_;
};

}  // namespace lockstep
