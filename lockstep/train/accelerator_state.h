// The state that an Accelerator shares with the objects that it has prepared.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/live_bytes.h"
#include "lockstep/optim/step_spec.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/step_memory.h"
#include "lockstep/train/stop_agreement.h"
#include "lockstep/train/stop_signals.h"
#include "lockstep/train/strategy.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep::inline v0 {

// The position of a prepared loader.
struct LoaderPlace {
  int64_t epoch = 0;  // of the present loop, or the next one
  int64_t taken = 0;  // batches of it that loops have taken, or will skip
  int64_t batches = 0;
  int64_t last_step_samples = 0;
  bool trains = false;  // the present loop has had a backward, or continues within its epoch
  bool left = false;    // it trains, and was left early

  bool at_last() const { return taken == batches; }  // the batch taken last ends the epoch
};
// Checks that a loader of `batches` can continue there.
// Throws: InvalidArgument if the position is within an epoch of another number of batches, which is
// possible after load_state() with other batches over all ranks.
LOCKSTEP_API void check_place(const LoaderPlace& place, int64_t batches);

// The state that an Accelerator, its model, optimizer and loaders have in common.
class LOCKSTEP_API AcceleratorState {
 public:
  // Takes the precision and the accumulation of `spec`; the optimizer is the caller's.
  AcceleratorState(Communicator communicator, const optim::StepSpec& spec,
                   std::shared_ptr<Strategy> way, std::shared_ptr<Timeline> its_timeline = nullptr);

  // Under which the model computes; nullopt: in float32.
  std::optional<amp::AutocastSettings> autocast() const { return autocast_; }
  // Accelerator::backward().
  at::Tensor backward(const std::function<at::Tensor()>& loss, std::optional<double> share);
  // A step of the optimizer, if gradients were averaged; whether it was taken.
  bool step(torch::optim::Optimizer& optimizer, std::optional<double> max_norm);
  // Accelerator::clip_grad_norm().
  double clip(const std::vector<at::Tensor>& parameters, double max_norm);

  // Begins the next batch of an accumulation.
  void count_step();
  bool synchronizes() const { return synchronizes_; }  // the present batch ends its accumulation
  // Whether an accumulation has begun, and is not complete.
  bool has_begun() const { return begun_; }

  // A place for a prepared loader.
  std::shared_ptr<LoaderPlace> add_loader();
  // To be called when a loop begins, perhaps within another, and when it ends or is left.
  void enter(std::shared_ptr<LoaderPlace> place);
  void leave(LoaderPlace& place);
  // The position of the innermost loop; nullptr outside of loops.
  const LoaderPlace* current() const { return loops_.empty() ? nullptr : loops_.back().get(); }

  // The device of the batches: the ranks' device, except for a divided model, whose ranks cut them
  // on the host.
  at::Device batch_device() const;
  void add(torch::nn::Module& model);
  void add(torch::optim::Optimizer& optimizer);
  void save(const std::filesystem::path& path, const CheckpointFiles& files);
  void load(const std::filesystem::path& path);
  // Accelerator::share() and restore_share().
  at::Tensor share(at::Tensor memory);
  void restore_share(const at::Tensor& share);

  // The signal for which all ranks stop; 0: none.
  int stop_signal();

  // Accelerator::planned_memory() and memory().
  StepMemory planned_memory() const;
  StepMemory memory() const;
  // Runs a forward. Counts the bytes that the first one with gradients leaves.
  template <typename Compute>
  auto forward(const Compute& compute) {
    const bool in_one = strategy->traits().divides_model && at::GradMode::is_enabled();
    const TimelineSpan span(in_one ? nullptr : timeline.get(), "forward");
    if (activations_ || !at::GradMode::is_enabled()) return compute();
    const LiveBytes live;
    auto output = compute();
    activations_ = live.now();
    return output;
  }

  Communicator comm;
  const std::shared_ptr<Strategy> strategy;
  const std::shared_ptr<Timeline> timeline;  // may be null
  Communicator data_ranks;                   // StrategyPlacement::data_ranks()

 private:
  amp::GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }
  void check_follows(const torch::optim::Optimizer& optimizer) const;
  void check_complete(const char* what) const;
  std::string places() const;
  std::vector<LoaderPlace> places_from(const std::string& text, const std::string& source) const;
  void set_places(const std::vector<LoaderPlace>& places);

  std::optional<amp::AutocastSettings> autocast_;
  std::optional<amp::GradScaler> scaler_;
  int64_t accumulation_;
  int64_t counted_ = 0;  // batches of the present accumulation
  int64_t group_;        // its number of batches, which is smaller at the end of an epoch
  bool synchronizes_ = true;
  bool begun_ = false;                  // the latest backward was not the last of its accumulation
  bool dropped_ = false;                // there are gradients of an accumulation that was dropped
  std::optional<int64_t> activations_;  // bytes
  torch::nn::Module* model_ = nullptr;
  torch::optim::Optimizer* optimizer_ = nullptr;
  bool moved_ = false;  // the model was moved to the ranks' device
  std::vector<std::shared_ptr<LoaderPlace>> places_;
  std::vector<std::shared_ptr<LoaderPlace>> loops_;  // the present ones, the innermost last
  std::optional<StopSignals> signals_;               // since the first stop_signal()
  std::optional<StopAgreement> agreement_;
  int stopped_by_ = 0;
};

}  // namespace lockstep::inline v0
