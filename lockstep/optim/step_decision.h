// What a step does, decided from its options and the gradients' norm: by the host, or by the device that has the gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "lockstep/optim/fused_step.h"

namespace lockstep::optim {

struct StepDecision {
  bool skipped = false;  // by the host
  double divisor = 1;    // of the gradients
  // Where the device decides, one float32 each; no divisor: 1.
  at::Tensor device_divisor = {};
  at::Tensor found_inf = {};  // 1 leaves the step out; undefined: the host decides
};

// `who` begins what is thrown. Throws InvalidArgument for an option out of range.
void check_step_options(const StepOptions& options, const char* who);

// Whether these options leave the decision to a device, given that it has all that the step needs.
bool device_may_decide(const StepOptions& options);

// The gradients' norm as they are, scale included. It is called where the options ask for it, once at most.
using HostNorm = std::function<double()>;
// The same as one float64 element on the device, for which the host does not wait.
using DeviceNorm = std::function<at::Tensor()>;

// By values that the host reads. `first_not_finite` names a gradient for the error of NonFinite::kThrow. Throws InvalidArgument
// for a scale that is not above 0, and Error for a norm that is not finite.
StepDecision decide_step(const StepOptions& options, const char* who, const HostNorm& norm,
                         const std::function<std::string()>& first_not_finite, StepResult* result);

// By values that stay on `device`. A scale that is not above 0 leaves the step out.
StepDecision decide_step_on_device(const StepOptions& options, at::Device device,
                                   const DeviceNorm& norm, StepResult* result);

}  // namespace lockstep::optim
