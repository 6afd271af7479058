// For an optimizer whose gradients may still be in transit between ranks after backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Found by dynamic_cast: code that looks at an optimizer's gradients before its step(), such as
// amp::GradScaler, calls synchronize() first.
class LOCKSTEP_API PendingGradients {
 public:
  virtual ~PendingGradients() = default;
  // Returns once all gradients are the ones that step() will use. Does nothing if they are.
  // Collective: all ranks call it.
  virtual void synchronize() = 0;
  // After synchronize(): the gradients that step() will use, in place, where those are not the
  // parameters' grad(). The ranks' gradients together are all gradients.
  virtual std::optional<std::vector<at::Tensor>> own_gradients() { return std::nullopt; }
  // The step for these gradients is not taken: the next backward begins another one. Where the
  // gradients count for one step only, they are dropped.
  // Collective: all ranks call it.
  virtual void leave_out() {}
};

}  // namespace lockstep::inline v0
