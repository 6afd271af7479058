// The decision about a step, from its options and the gradients' norm: by the host, or by the
// device with the gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "lockstep/optim/fused_step.h"

namespace lockstep::inline v0::optim {

struct StepDecision {
  bool skipped = false;  // by the host
  double divisor = 1;    // for the gradients
  // Where the device decides, one float32 each; undefined divisor: 1.
  at::Tensor device_divisor = {};
  at::Tensor found_inf = {};  // 1 skips the step; undefined: the host decides
};

// `who` begins the errors.
// Throws: InvalidArgument for an option out of range.
void check_step_options(const StepOptions& options, const char* who);

// Whether these options let a device decide, given that it has everything that the step needs.
bool device_may_decide(const StepOptions& options);

// The norm of the gradients, scale included. Called at most once, where the options require it.
using HostNorm = std::function<double()>;
// The same as one float64 element on the device; the host does not wait.
using DeviceNorm = std::function<at::Tensor()>;

// Decides by values that the host reads. `first_not_finite` names a gradient for the error of
// NonFinite::kThrow.
// Throws: InvalidArgument for a scale that is not above 0, and Error for a norm that is not finite.
StepDecision decide_step(const StepOptions& options, const char* who, const HostNorm& norm,
                         const std::function<std::string()>& first_not_finite, StepResult* result);

// Decides by values that stay on `device`. A scale that is not above 0 skips the step.
StepDecision decide_step_on_device(const StepOptions& options, at::Device device,
                                   const DeviceNorm& norm, StepResult* result);

}  // namespace lockstep::inline v0::optim
