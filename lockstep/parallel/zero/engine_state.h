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

struct EngineProgress {
  int64_t micro_steps = 0;
  int64_t global_steps = 0;
  int64_t skipped_steps = 0;

  bool operator==(const EngineProgress&) const = default;
};

struct LoadedCheckpoint {
  std::string tag;
  std::string client_state;
};

class LOCKSTEP_API EngineState {
 public:
  EngineState(torch::nn::Module& module, Communicator comm, const ZeroConfig& config,
              const EngineOptions& options);
  EngineState(const EngineState&) = delete;
  EngineState& operator=(const EngineState&) = delete;

  void before_forward(const torch::nn::Module& module);
  void share_buffers() { lockstep::share_buffers(module_, comm_); }
  amp::Autocast autocast() const;
  void backward(const at::Tensor& loss, std::optional<double> share);
  StepReport step();
  bool at_boundary() const;

  void save(const std::filesystem::path& dir, std::string tag, const std::string& client_state);
  LoadedCheckpoint load(const std::filesystem::path& dir, std::string tag);

  ZeroOptimizer& optimizer() { return *optimizer_; }
  Communicator& comm() { return comm_; }
  const ZeroConfig& config() const { return config_; }
  const EngineProgress& progress() const { return progress_; }
  double learning_rate() const;
  double loss_scale() const;

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
