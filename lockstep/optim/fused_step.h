// A step that includes clipping by global norm, and the unscaling and skipping of mixed precision.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::optim {

// The treatment of a step where the gradients' norm is not finite.
enum class NonFinite {
  kThrow,  // Error that names the first gradient that is not finite
  kSkip,   // the step is skipped, StepResult::skipped is true
};

// How a step is taken.
struct StepOptions {
  // Clip the gradients (unscaled ones) to this global norm over all groups. Must be above 0.
  std::optional<double> max_norm = std::nullopt;
  // The scale of a GradScaler: the gradients are `grad_scale` times the true ones. One
  // floating-point element, any device; undefined: 1.
  //
  // If a device has the gradients, the host waits neither for grad_scale and found_inf nor, with
  // NonFinite::kSkip, for the norm: the device skips the step, also for a grad_scale that is not
  // above 0, and the result does not report it. Muon and the first step of a parameter do wait.
  at::Tensor grad_scale = {};
  // Not 0: some gradient, on some rank, is infinite or NaN, and the step must be skipped. One
  // floating-point element, any device. Where it is undefined and grad_scale is not, the gradients
  // themselves are checked; ranks whose gradients differ must then agree by found_inf.
  at::Tensor found_inf = {};
  // The treatment of a norm that is not finite, where neither grad_scale nor found_inf is given
  // (with either, the step is skipped).
  NonFinite on_non_finite = NonFinite::kThrow;
};

// The result of a step.
struct StepResult {
  // The norm of the unscaled gradients before clipping; nullopt where no norm was needed.
  std::optional<double> grad_norm = std::nullopt;
  // Replaces grad_norm where the device decides: one float64 there, or undefined.
  at::Tensor norm = {};
  // Parameters, state and step counts are unchanged. Not set where the device decides.
  bool skipped = false;
};

// The interface of this room's optimizers besides torch::optim::Optimizer's; found by
// dynamic_cast<FusedStep*>(&optimizer).
//
// Gradients are divided once, inside the optimizer's kernel, by grad_scale times max(1, (norm +
// 1e-6) / max_norm): there is no separate pass over them, and afterwards grad() holds the divided
// ones, as after torch::nn::utils::clip_grad_norm_. The divisor is a float32; a divisor of 1
// changes no bit. Local, not collective: under DDP all ranks have the same gradients, hence the
// same norm.
//
// Throws: InvalidArgument (an option out of range; sparse gradients; parameters that have been
// moved to another device, dtype or memory) and Error (NonFinite::kThrow); the optimizer is then
// unchanged.
class LOCKSTEP_API FusedStep {
 public:
  virtual ~FusedStep() = default;
  // Takes a step, or skips it.
  virtual StepResult step(const StepOptions& options) = 0;
};

}  // namespace lockstep::inline v0::optim
