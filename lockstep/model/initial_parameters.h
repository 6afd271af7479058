// The initial values of a new model's parameters.
#pragma once

namespace lockstep::inline v0 {

// Whether the parameters of a new model have values.
enum class InitialParameters {
  // Weights from a normal distribution of the configuration's initializer_range, the padding token's
  // row and biases 0, norms 1, as transformers does.
  kDrawn,
  kNone,  // memory as it comes, to be loaded over
};

}  // namespace lockstep::inline v0
