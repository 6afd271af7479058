// The part of zero::Engine that does not depend on the module's type. Not used directly: see
// engine.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/amp/autocast.h"
#include "lockstep/checkpoint/share_buffers.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/optim/step_spec.h"
#include "lockstep/parallel/zero/loss_scaler.h"
#include "lockstep/parallel/zero/zero_config.h"
#include "lockstep/parallel/zero/zero_optimizer.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0::zero {

// Options that the JSON cannot express.
struct EngineOptions {
  // Parameters without weight decay; nullopt: the optimizer's weight decay applies to all.
  std::optional<optim::NoDecay> no_decay = std::nullopt;
};

// The result of a call of step().
struct StepReport {
  bool boundary = false;  // a step of the optimizer was due
  bool skipped = false;   // and skipped, since float16 gradients had overflowed
  // Before clipping; computed where clipping or float16 requires it.
  std::optional<double> grad_norm = std::nullopt;
};

// The counters of a training, which a checkpoint keeps.
struct EngineProgress {
  int64_t micro_steps = 0;
  int64_t global_steps = 0;
  int64_t skipped_steps = 0;

  bool operator==(const EngineProgress&) const = default;
};

// The result of load_checkpoint().
struct LoadedCheckpoint {
  std::string tag;
  std::string client_state;
};

// Module, optimizer, scaler, schedule and counters of an Engine, whose functions of the same names
// call these.
class LOCKSTEP_API EngineState {
 public:
  EngineState(torch::nn::Module& module, Communicator comm, const ZeroConfig& config,
              const EngineOptions& options);
  EngineState(const EngineState&) = delete;
  EngineState& operator=(const EngineState&) = delete;

  // Shares the buffers where a step begins.
  void before_forward(const torch::nn::Module& module);
  // Rank 0's buffers to all; collective.
  void share_buffers() { lockstep::share_buffers(module_, comm_); }
  // Forward computes under it.
  amp::Autocast autocast() const;
  // Engine::backward().
  void backward(const at::Tensor& loss, std::optional<double> share);
  // Engine::step().
  StepReport step();
  // Engine::is_gradient_accumulation_boundary().
  bool at_boundary() const;

  // Engine::save_checkpoint().
  void save(const std::filesystem::path& dir, std::string tag, const std::string& client_state);
  // Engine::load_checkpoint().
  LoadedCheckpoint load(const std::filesystem::path& dir, std::string tag);

  ZeroOptimizer& optimizer() { return *optimizer_; }            // the engine's own
  Communicator& comm() { return comm_; }                        // the one that it was made with
  const ZeroConfig& config() const { return config_; }          // resolved
  const EngineProgress& progress() const { return progress_; }  // so far
  double learning_rate() const;                                 // for the next step
  double loss_scale() const;                                    // 1 except in fp16

 private:
  StepReport step_optimizer();
  void follow_schedule();
  std::string progress_json(const std::string& client_state) const;

  torch::nn::Module& module_;
  Communicator comm_;
  ZeroConfig config_;
  optim::StepSpec spec_;  // the configuration's, and the options'
  NamedTensors buffers_;
  flat::WrappedParameters wrapped_;
  std::unique_ptr<ZeroOptimizer> optimizer_;
  std::optional<LossScaler> scaler_;
  EngineProgress progress_;
  bool backward_done_ = false;  // after the last step()
};

}  // namespace lockstep::inline v0::zero
