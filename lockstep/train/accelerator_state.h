// What an Accelerator and what it has prepared share.
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
#include "lockstep/flat/live_bytes.h"
#include "lockstep/optim/step_spec.h"
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

namespace lockstep {

// Where a prepared loader stands.
struct LoaderPlace {
  int64_t epoch = 0;  // of the loop under way, or the next one
  int64_t taken = 0;  // batches of it that loops have taken, or are to skip
  int64_t batches = 0;
  int64_t last_step_samples = 0;
  bool trains = false;  // the loop under way has had a backward, or goes on in its epoch's midst
  bool left = false;    // it trains, and was left in its midst

  bool at_last() const { return taken == batches; }
};
// A loader of `batches` is to go on there. Throws InvalidArgument where the place is one in an
// epoch of another number of batches: after load_state(), with other batches over all ranks.
void check_place(const LoaderPlace& place, int64_t batches);

class AcceleratorState {
 public:
  // Of `spec` the precision and the accumulation; the optimizer is the caller's.
  AcceleratorState(Communicator communicator, const optim::StepSpec& spec,
                   std::shared_ptr<Strategy> way);

  std::optional<amp::AutocastSettings> autocast() const { return autocast_; }
  at::Tensor backward(const std::function<at::Tensor()>& loss, std::optional<double> share);
  bool step(torch::optim::Optimizer& optimizer, std::optional<double> max_norm);
  double clip(const std::vector<at::Tensor>& parameters, double max_norm);

  void count_step();
  bool synchronizes() const { return synchronizes_; }
  // Whether gradients wait for those of the steps to come.
  bool has_begun() const { return begun_; }

  std::shared_ptr<LoaderPlace> add_loader();
  // A loop begins, perhaps within another, and ends: by its end, `break` or an exception.
  void enter(std::shared_ptr<LoaderPlace> place);
  void leave(LoaderPlace& place);
  // Where the innermost loop under way stands; nullptr outside of loops.
  const LoaderPlace* current() const { return loops_.empty() ? nullptr : loops_.back().get(); }

  // Where loaders bring batches: to the ranks' device, but of a model that is divided, whose ranks
  // cut them on the host.
  at::Device batch_device() const;
  void add(torch::nn::Module& model);
  void add(torch::optim::Optimizer& optimizer);
  void save(const std::filesystem::path& path, const CheckpointFiles& files);
  void load(const std::filesystem::path& path);

  // The signal that all ranks stop for; 0: none.
  int stop_signal();

  StepMemory planned_memory() const;
  StepMemory memory() const;
  // Runs a forward; of the first one that will have a backward, what it leaves in memory is
  // counted.
  template <typename Compute>
  auto forward(const Compute& compute) {
    if (activations_ || !at::GradMode::is_enabled()) return compute();
    const LiveBytes live;
    auto output = compute();
    activations_ = live.now();
    return output;
  }

  Communicator comm;
  const std::shared_ptr<Strategy> strategy;
  Communicator data_ranks;  // that have data of their own

 private:
  amp::GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }
  void check_follows(const torch::optim::Optimizer& optimizer) const;
  void check_complete(const char* what) const;

  std::optional<amp::AutocastSettings> autocast_;
  std::optional<amp::GradScaler> scaler_;
  int64_t accumulation_;
  int64_t counted_ = 0;  // steps of the accumulation under way
  int64_t group_;        // that it has: fewer at the end of an epoch
  bool synchronizes_ = true;
  bool begun_ = false;                  // the latest backward was not the last of its accumulation
  bool dropped_ = false;                // gradients are left of an accumulation that will not go on
  std::optional<int64_t> activations_;  // bytes
  torch::nn::Module* model_ = nullptr;
  torch::optim::Optimizer* optimizer_ = nullptr;
  bool moved_ = false;  // the model was, to the ranks' device
  std::vector<std::shared_ptr<LoaderPlace>> places_;
  std::vector<std::shared_ptr<LoaderPlace>> loops_;  // under way, the innermost last
  std::optional<StopSignals> signals_;               // once asked for
  std::optional<StopAgreement> agreement_;
  int stopped_by_ = 0;
};

}  // namespace lockstep
