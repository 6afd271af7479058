// zero::Engine: training in DeepSpeed's terms, from a DeepSpeed-style JSON.
//
//   auto config = lockstep::zero::load_zero_config("ds_config.json");
//   auto engine = lockstep::zero::initialize(model, comm, config);
//   for (...) {
//     const at::Tensor logits = engine.forward(x);
//     const at::Tensor loss = torch::nn::functional::cross_entropy(logits, y);
//     engine.backward(loss);
//     engine.step();
//   }
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/flat/module_pointer.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/parallel/zero/engine_state.h"
#include "lockstep/parallel/zero/zero_config.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace lockstep::inline v0::zero {

// Wraps any module with any forward(): M is a ModuleHolder (made by TORCH_MODULE) or a
// std::shared_ptr to a module. Made by initialize().
//
// A step is gradient_accumulation_steps times forward(), backward() and step(); the last step() is
// its boundary. Forward computes under autocast where the configuration says bf16 or fp16. The
// parameters stay float32, and so do gradients and state: they are the master weights. A model that
// was converted to 16 bits before, as DeepSpeed does, stays 16-bit and uses
// ZeroOptions::master_weights. 16-bit outputs are converted to float32, so that the loss is
// computed in float32. If the module has buffers (BatchNorm's statistics), rank 0's are copied to
// all before the first forward of a step in training.
//
// The module is shared, not copied. A parameter that was added, replaced, unfrozen or converted
// since is InvalidArgument that names it, at the next forward() with gradients enabled. Not
// copyable; movable.
// Collective: backward(), step(), save_checkpoint() and load_checkpoint(); forward() of a module
// with buffers. eval() is local, and so is forward() of a module without buffers.
// Throws: the collective functions throw the communicator's errors.
// Thread-safety: one thread at a time.
template <typename M>
class Engine {
  static_assert(
      ModulePointer<M>,
      "zero::initialize() takes a module's holder (TORCH_MODULE) or a std::shared_ptr to it, "
      "then the communicator");

 public:
  Engine(M module, Communicator comm, const ZeroConfig& config, const EngineOptions& options)
      : module_(std::move(module)),
        state_(std::make_shared<EngineState>(*module_, std::move(comm), config, options)) {}
  Engine(Engine&&) noexcept = default;
  Engine& operator=(Engine&&) noexcept = default;

  // The module's forward().
  template <typename... Args>
  auto forward(Args&&... args) {
    state_->before_forward(*module_);
    auto output = [&] {
      const auto autocast = state_->autocast();
      return module_->forward(std::forward<Args>(args)...);
    }();
    amp::widen(output);
    return output;
  }
  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // `loss` has one element, the mean over this rank's micro-batch: it is divided by
  // gradient_accumulation_steps (and scaled, in fp16) before its backward(). Call it once per
  // forward; throws InvalidArgument for a second call before step().
  void backward(const at::Tensor& loss) { state_->backward(loss, {}); }
  // The same for micro-batches of unequal weight, such as those of a loss over tokens. `share`: the
  // share of this loss in the mean over the whole step, all its micro-batches and ranks. The shares
  // of a step add up to 1. A micro-batch without a target has share 0, and adds nothing if its
  // loss's gradient is a number (cross entropy's is; a mean made by hand must divide by
  // max(targets, 1)).
  // Throws: InvalidArgument for a share that is not a number, as in a step without a target.
  void backward(const at::Tensor& loss, double share) { state_->backward(loss, share); }
  // Called after every backward(). At the boundary the gradients' average is clipped, the optimizer
  // takes its step unless fp16 gradients have overflowed on any rank, and the learning rate
  // advances. Before the boundary it only counts.
  // Throws: InvalidArgument without a backward() before it; Error (on all ranks) when gradients are
  // clipped and not finite.
  StepReport step() { return state_->step(); }
  // Whether the next backward() and step() end the step.
  bool is_gradient_accumulation_boundary() const { return state_->at_boundary(); }

  // The wrapped module.
  M& module() { return module_; }
  const M& module() const { return module_; }
  auto operator->() { return &*module_; }
  auto operator->() const { return &*module_; }
  // Before an evaluation, buffers (BatchNorm's running statistics) that differ between ranks after
  // training become rank 0's, which are the ones that are saved: collective with `on` false.
  // module()->eval() is local and keeps the rank's own.
  void train(bool on = true) {
    if (!on) state_->share_buffers();
    module_->train(on);
  }
  void eval() { train(false); }

  ZeroOptimizer& optimizer() { return state_->optimizer(); }     // the engine's own
  Communicator& comm() { return state_->comm(); }                // the one that it was made with
  const ZeroConfig& config() const { return state_->config(); }  // resolved
  // Samples of a step on all ranks.
  int64_t train_batch_size() const { return config().train_batch_size; }
  // Samples of a forward on a rank.
  int64_t train_micro_batch_size() const { return config().train_micro_batch_size; }
  // Forwards of a step on a rank.
  int64_t gradient_accumulation_steps() const { return config().gradient_accumulation_steps; }

  // Including skipped ones.
  int64_t global_steps() const { return state_->progress().global_steps; }
  int64_t skipped_steps() const { return state_->progress().skipped_steps; }  // fp16 overflow
  int64_t micro_steps() const { return state_->progress().micro_steps; }      // calls of step()
  // Samples of all steps so far, on all ranks.
  int64_t global_samples() const { return global_steps() * train_batch_size(); }
  double learning_rate() const { return state_->learning_rate(); }  // for the next step
  double loss_scale() const { return state_->loss_scale(); }        // 1 except in fp16

  // Writes DIR/TAG, a checkpoint directory (checkpoint_directory.h): module, optimizer, counters,
  // every rank's generator and `client_state`, any text of the caller's; then DIR/latest, a file
  // with the tag. An empty tag is "global_step<global_steps>". A writer that is killed at any
  // instant leaves the former checkpoint whole.
  // Requires: between steps; InvalidArgument otherwise.
  // Throws: SystemError on rank 0, CheckpointError on the other ranks.
  void save_checkpoint(const std::filesystem::path& dir, const std::string& tag = "",
                       const std::string& client_state = "") {
    state_->save(dir, tag, client_state);
  }
  // Loads DIR/TAG, or without a tag the one that DIR/latest names. On as many ranks as wrote it,
  // with the same configuration, the following steps equal bit for bit those of the uninterrupted
  // run. On another number of ranks, or from another configuration, generators are unchanged. The
  // optimizer's options are the configuration's, but the learning rate continues from the
  // checkpoint.
  // Throws: CheckpointError; then nothing has changed.
  LoadedCheckpoint load_checkpoint(const std::filesystem::path& dir, const std::string& tag = "") {
    return state_->load(dir, tag);
  }

 private:
  M module_;
  std::shared_ptr<EngineState> state_;
};

// Compares the ranks' models, copies rank 0's parameters and buffers to all, and makes the
// optimizer. It leaves frozen parameters out.
// Collective: all ranks, with the same configuration.
// Throws: Mismatch (models differ), InvalidArgument (resolved(), ZeroOptimizer).
template <typename M>
Engine<M> initialize(M module, Communicator comm, const ZeroConfig& config,
                     const EngineOptions& options = {}) {
  return Engine<M>(std::move(module), std::move(comm), config, options);
}

}  // namespace lockstep::inline v0::zero
