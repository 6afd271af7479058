// StepMemory: the parts of one rank's memory that a step of training takes.
#pragma once

#include <cstdint>

namespace lockstep::inline v0 {

// The memory that a step takes beside what lasts from step to step, in bytes.
struct StepBytes {
  int64_t activations = 0;  // left by a forward for its backward, the output included
  // Memory that is there for a moment, beside activations and gradients: within an operation,
  // between two of them, and for messages on their way.
  int64_t temporaries = 0;
  // The sum of gradients, activations and temporaries less the most of them at once: gradients come
  // as activations go, where the former step's are freed before the forward.
  int64_t overlap = 0;
  // The most of activations and temporaries that is there at once, beside the gradients.
  int64_t at_once() const { return activations + temporaries - overlap; }
  friend bool operator==(const StepBytes&, const StepBytes&) = default;
};

// Bytes.
struct StepMemory {
  int64_t parameters = 0;  // the rank's share, if the ranks of a host have one copy
  int64_t gradients = 0;
  int64_t state = 0;        // the optimizer's
  int64_t buffers = 0;      // for the gradients and parameters of other ranks
  int64_t average = 0;      // of the parameters over the steps (optim/exponential_average.h)
  int64_t activations = 0;  // StepBytes'
  int64_t temporaries = 0;
  int64_t overlap = 0;
  // Takes over what a step's computation needs.
  void set(const StepBytes& step) {
    activations = step.activations;
    temporaries = step.temporaries;
    overlap = step.overlap;
  }
  // The most of all parts at once.
  int64_t total() const {
    return parameters + gradients + state + buffers + average + activations + temporaries - overlap;
  }
  friend bool operator==(const StepMemory&, const StepMemory&) = default;
};

}  // namespace lockstep::inline v0
