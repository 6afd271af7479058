// A step with what surrounds it folded in: clipping by global norm, and the unscaling and skipping
// that mixed precision needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace lockstep::optim {

enum class NonFinite {
  kThrow,  // Error that names the first gradient that is not finite
  kSkip,   // the step is left out, StepResult::skipped is true
};

struct StepOptions {
  // Clip the gradients (unscaled ones) to this global norm over all groups. Must be above 0.
  std::optional<double> max_norm = std::nullopt;
  // On a device that has the gradients, grad_scale and found_inf are not waited for, nor is the norm with
  // NonFinite::kSkip: the device leaves the step out, for a grad_scale that is not above 0 too, and the result says nothing of
  // it. Muon and the first step of a
  // parameter wait.
  //
  // What a GradScaler hands in. The gradients are `grad_scale` times the true ones: one
  // floating-point element, any device; undefined: 1.
  at::Tensor grad_scale = {};
  // Not 0: some gradient, on some rank, is infinite or NaN, and the step is to be skipped. One
  // floating-point element, any device. Where it is undefined and grad_scale is not, the gradients
  // themselves are looked at; ranks whose gradients differ must then agree by found_inf.
  at::Tensor found_inf = {};
  // What to do about a norm that is not finite, where neither grad_scale nor found_inf is given
  // (with either, the step is skipped).
  NonFinite on_non_finite = NonFinite::kThrow;
};

struct StepResult {
  // Of the unscaled gradients before clipping; nothing where no norm was asked for or needed.
  std::optional<double> grad_norm = std::nullopt;
  // In its place where the device decides: one float64 there, or undefined.
  at::Tensor norm = {};
  // Parameters, state and step counts are as they were. Not said where the device decides.
  bool skipped = false;
};

// What the optimizers of this room have beside torch::optim::Optimizer's interface; found by
// dynamic_cast<FusedStep*>(&optimizer).
//
// Gradients are divided once, inside the optimizer's kernel, by grad_scale times
// max(1, (norm + 1e-6) / max_norm): there is no pass of its own over them, and afterwards grad()
// holds the divided ones, as after torch::nn::utils::clip_grad_norm_. The divisor is a float32; a
// divisor of 1 leaves every bit alone. Local, no collective: under DDP all ranks hold the same
// gradients, hence the same norm.
//
// Throws InvalidArgument (an option out of range; gradients that are sparse; parameters that have
// been moved to another device, dtype or memory since) and Error (NonFinite::kThrow); the
// optimizer is then as it was.
class FusedStep {
 public:
  virtual ~FusedStep() = default;
  virtual StepResult step(const StepOptions& options) = 0;
};

}  // namespace lockstep::optim
