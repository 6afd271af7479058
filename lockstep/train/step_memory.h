// StepMemory: the parts of one rank's memory that a step of training takes.
#pragma once

#include <cstdint>

namespace lockstep::inline v0 {

// Bytes.
struct StepMemory {
  int64_t parameters = 0;  // the rank's share, if the ranks of a host have one copy
  int64_t gradients = 0;
  int64_t state = 0;        // the optimizer's
  int64_t buffers = 0;      // for the gradients and parameters of other ranks
  int64_t average = 0;      // of the parameters over the steps (optim/exponential_average.h)
  int64_t activations = 0;  // left by a forward for its backward, the output included
  // Of all parts.
  int64_t total() const { return parameters + gradients + state + buffers + average + activations; }
  friend bool operator==(const StepMemory&, const StepMemory&) = default;
};

}  // namespace lockstep::inline v0
