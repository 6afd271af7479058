// Accelerator: your own training loop on several ranks, in mixed precision, with accumulated
// gradients, like Hugging Face accelerate.
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
#include "lockstep/core/export.h"
#include "lockstep/data/loader.h"
#include "lockstep/flat/module_pointer.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/train/accelerator_state.h"
#include "lockstep/train/prepared.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/step_memory.h"

namespace lockstep::inline v0 {

// The options of an Accelerator.
struct AcceleratorOptions {
  std::string mixed_precision = "no";       // "no", "bf16", "fp16"
  int64_t gradient_accumulation_steps = 1;  // batches of a step on a rank
  // For one model; null: make_strategy("ddp"). A strategy that divides the model over a mesh
  // (lm_mesh_strategy.h), also by a pipeline, takes neither gradient_accumulation_steps nor fp16.
  // Its losses are those of the model's forward with targets, within backward([&] { return loss;
  // }).
  std::shared_ptr<Strategy> strategy = nullptr;
  // The timeline in which the prepared objects mark their work: data, forward, backward, optimizer,
  // checkpoint. The caller's loop starts it, marks its steps, and writes it (timeline.h). With
  // TimelineOptions::nvtx these parts and the calls are NVTX ranges. Null: nothing is marked.
  std::shared_ptr<Timeline> timeline = nullptr;
};

// Not copyable.
// Thread-safety: one thread, the communicator's.
class LOCKSTEP_API Accelerator {
 public:
  // Joins the job like init().
  // Throws: InvalidArgument; as init().
  explicit Accelerator(const AcceleratorOptions& options = {});
  Accelerator(Communicator comm, const AcceleratorOptions& options);
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // Prepares its arguments for several ranks, and returns a tuple of as many results, in order:
  //   a module holder   PreparedModel: under the strategy, with autocast
  //   an optimizer      (torch's or ours, referred to) PreparedOptimizer: steps after gradients
  //                     were averaged, in fp16 with a GradScaler
  //   a data::Loader    (referred to, with its sampler and data set) PreparedLoader: this rank's
  //                     batches
  // Collective: if a model is among them.
  template <typename... Things>
  auto prepare(Things&... things) {
    return std::tuple{prepare_one(things)...};
  }

  // Calls loss.backward(). The loss is divided by the batches of the accumulation (accumulate()),
  // and scaled in fp16.
  // Collective: if gradients are averaged.
  void backward(const at::Tensor& loss) {
    state_->backward([&] { return loss; }, {});
  }
  // The same for the loss that `loss` computes: forward and backward in one call, which a divided
  // model requires. Returns the loss without its graph.
  at::Tensor backward(const std::function<at::Tensor()>& loss) {
    return state_->backward(loss, {});
  }
  // The same for batches of unequal weight, such as those of a loss over tokens. `share`: the share
  // of this batch's loss in the mean over the whole step, over all its batches and all ranks that
  // have batches of their own. The shares of a step add up to 1. A batch without a target has share
  // 0, which adds nothing if its loss's gradient is a number (cross entropy's is; a mean made by
  // hand must divide by max(targets, 1)).
  // Throws: InvalidArgument for a share that is not a number, as in a step without a target.
  //   accelerator.backward(loss, targets / targets_of_the_step);
  void backward(const at::Tensor& loss, double share) {
    state_->backward([&] { return loss; }, share);
  }
  at::Tensor backward(const std::function<at::Tensor()>& loss, double share) {
    return state_->backward(loss, share);
  }

  // While the guard exists, a batch of an accumulation: gradients are averaged and optimizers take
  // steps in every gradient_accumulation_steps-th batch, and in the last one of a loader's epoch.
  //   for (auto& batch : loader) { const auto guard = accelerator.accumulate(model); ... }
  template <typename M>
  Accumulation accumulate(PreparedModel<M>& model) {
    state_->count_step();
    return state_->synchronizes() ? Accumulation(nullptr) : model.no_sync();
  }
  // The present batch is the last of its accumulation.
  bool sync_gradients() const { return state_->synchronizes(); }

  // Clips the gradients to a global norm if they were averaged, and returns the former norm;
  // returns 0 otherwise.
  // Throws: InvalidArgument if the strategy divides the gradients (zero1 to zero3, a mesh); there
  // optimizer.step(max_norm) clips.
  double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm) {
    return state_->clip(parameters, max_norm);
  }

  // Gathers tensors of one shape [k, ...] from all ranks: [ranks * k, ...].
  // Collective: all ranks.
  at::Tensor gather(const at::Tensor& tensor);
  // The same for outputs of a prepared loader's batch, from the ranks that have batches of their
  // own. It leaves out samples that the last step repeats to fill its batches, so that all steps
  // together return every sample once.
  // Collective: all ranks.
  at::Tensor gather_for_metrics(const at::Tensor& tensor);
  // Returns the sum or mean over all ranks, also over those that work on one batch, as a new
  // tensor. `reduction`: "sum", "mean".
  // Collective: all ranks.
  at::Tensor reduce(const at::Tensor& tensor, const std::string& reduction = "sum");
  // A barrier of all ranks.
  void wait_for_everyone();

  bool is_main_process() const { return comm().rank() == 0; }              // rank 0
  bool is_local_main_process() const { return comm().local_rank() == 0; }  // the first of its host
  int process_index() const { return comm().rank(); }                      // the rank
  int local_process_index() const { return comm().local_rank(); }  // among the ranks of this host
  int num_processes() const { return comm().size(); }              // of the job
  at::Device device() const { return comm().device(); }            // on which this rank trains
  // Prints a line on stdout, on the main process only.
  void print(const std::string& line) const;
  Communicator& comm() { return state_->comm; }
  // For an optimizer that the strategy makes, after prepare() had the model.
  Strategy& strategy() { return *state_->strategy; }
  const Communicator& comm() const { return state_->comm; }  // the job's ranks

  // The model that was given to prepare().
  template <typename M>
  M& unwrap_model(PreparedModel<M>& model) {
    return model.module();
  }
  // Saves the whole model as a checkpoint directory. Of a divided model rank 0 needs memory for all
  // of it.
  // Collective: all ranks.
  template <typename M>
  void save_model(PreparedModel<M>& model, const std::filesystem::path& path,
                  const CheckpointFiles& files = {}) {
    lockstep::save_model(model.strategy(), files, path);
  }

  // Saves and loads everything that was prepared (at most one model and one optimizer), the scaler,
  // the generators of all ranks, and the positions of the loaders. A run continues bit for bit
  // after load_state(): the next loop over a loader begins after the batches that were taken of its
  // epoch. Another number of ranks continues up to rounding, with random streams of its own, if
  // batch size times ranks is the same; if the epoch then has other batches, the loop throws
  // InvalidArgument.
  // Requires: between steps.
  // Collective: all ranks.
  // Throws: save_state() as CheckpointWriter::wait(); load_state() CheckpointError.
  void save_state(const std::filesystem::path& path, const CheckpointFiles& files = {}) {
    state_->save(path, files);
  }
  void load_state(const std::filesystem::path& path) { state_->load(path); }
  // The same as bytes in memory (uint8, 1-D), this rank's: for a run whose ranks are replaced where
  // they die (RollbackRecovery::State, recover/rollback_recovery.h). The accelerator and what it
  // prepares are then made again on the new ranks, and take the share back. Where every rank has
  // the whole model, a share has all of it. `memory`: an earlier share that is no longer needed,
  // whose memory is used again where that suffices. share() does not communicate; restore_share()
  // is collective.
  // Requires: between steps.
  // Throws: InvalidArgument for a strategy whose ranks train apart (diloco); restore_share()
  // DataError for bytes of another model, strategy or optimizer.
  at::Tensor share(at::Tensor memory = {}) { return state_->share(std::move(memory)); }
  void restore_share(const at::Tensor& share) { state_->restore_share(share); }

  // Whether the loop should save and end, since SIGTERM or SIGUSR1 came to any rank after the first
  // call; the same on all ranks. The process listens from the first call on (stop_signals.h). Call
  // it after every step; most calls only count (stop_agreement.h).
  // Collective: all ranks.
  //   if (accelerator.should_stop()) { accelerator.save_state("last"); break; }
  bool should_stop() { return state_->stop_signal() != 0; }

  // This rank's memory of a step: planned from shapes and types, without activations; and counted
  // after a step, with those of the first forward. to_text() and memory_svg() (memory_report.h)
  // show them. They do not communicate.
  // Throws: InvalidArgument before prepare() had the model and the optimizer.
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

}  // namespace lockstep::inline v0
