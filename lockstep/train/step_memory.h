// What a step of training takes of one rank's memory.
#pragma once

#include <cstdint>

namespace lockstep {

// Bytes.
struct StepMemory {
  int64_t parameters = 0;  // its share, where the ranks of a host have one copy
  int64_t gradients = 0;
  int64_t state = 0;        // the optimizer's
  int64_t buffers = 0;      // that gradients and parameters of others pass through
  int64_t activations = 0;  // what a forward leaves for its backward, its output included
  int64_t total() const { return parameters + gradients + state + buffers + activations; }
  friend bool operator==(const StepMemory&, const StepMemory&) = default;
};

}  // namespace lockstep
