// For an optimizer whose device decides whether a step is taken.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Found by dynamic_cast by amp::GradScaler, so that the host need not wait to learn whether
// gradients are finite, and by code that saves an optimizer's state.
class LOCKSTEP_API StepsOnDevice {
 public:
  virtual ~StepsOnDevice() = default;
  // A step that is skipped where `found_inf` is 1: one float32 element, 0 or 1, on the gradients'
  // device.
  virtual void step_unless(const at::Tensor& found_inf) = 0;
  // Makes the state's step counts those of the steps that were taken. Waits for the device if one
  // may have been skipped since the last call.
  virtual void settle() const = 0;
};

}  // namespace lockstep::inline v0
