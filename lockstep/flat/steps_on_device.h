// For an optimizer whose device decides whether a step is taken.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Found by dynamic_cast. What amp::GradScaler uses so that the host need not wait to learn whether gradients are
// finite, and what saves an optimizer's state.
class StepsOnDevice {
 public:
  virtual ~StepsOnDevice() = default;
  // A step, left out where `found_inf` is 1: one float32 element, 0 or 1, on the gradients' device.
  virtual void step_unless(const at::Tensor& found_inf) = 0;
  // Makes the state's step counts those of the steps that were taken. Waits for the device if one may have been left
  // out since the last time.
  virtual void settle() const = 0;
};

}  // namespace lockstep
