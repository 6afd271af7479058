// For an optimizer whose gradients may still be on their way between ranks after backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace lockstep {

// Found by dynamic_cast: whoever looks at an optimizer's gradients before its step(), such as
// amp::GradScaler, calls synchronize() first.
class PendingGradients {
 public:
  virtual ~PendingGradients() = default;
  // Returns once all gradients are what step() is to see. Does nothing if they are. Collective.
  virtual void synchronize() = 0;
  // After synchronize(): what step() is to see, where that is not the parameters' grad(); in place.
  // Together the ranks' are all gradients.
  virtual std::optional<std::vector<at::Tensor>> own_gradients() { return std::nullopt; }
  // The step that these gradients were for is not taken: the next backward begins another one. Where
  // the gradients count for one step only, they are dropped. Collective.
  virtual void leave_out() {}
};

}  // namespace lockstep
