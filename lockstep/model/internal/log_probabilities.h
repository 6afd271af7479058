// The end of a classifier.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>

#include <optional>

namespace lockstep::inline v0::internal {

// log-softmax over dim 1. Logits of 16 bits, as autocast makes them, give float32: autocast leaves
// log_softmax to the caller on the CPU, and the logarithm of a probability near 1 needs the digits.
inline at::Tensor log_probabilities(const at::Tensor& logits) {
  const bool narrow = logits.scalar_type() == at::kBFloat16 || logits.scalar_type() == at::kHalf;
  return at::log_softmax(logits, 1,
                         narrow ? std::optional<at::ScalarType>(at::kFloat) : std::nullopt);
}

}  // namespace lockstep::inline v0::internal
