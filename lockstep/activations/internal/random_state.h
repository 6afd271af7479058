// The state of the generators that a part of a forward draws from, to draw the same numbers again.
// Internal: see checkpoint.h.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace lockstep::inline v0::activations::internal {

// The state of the generators that this thread's operations draw from: the CPU's default one, or
// the thread's own (hooks/thread_generator.h), and those of the tensors' devices.
class RandomState {
 public:
  explicit RandomState(std::span<const at::Tensor> tensors);

  // Runs fn() with that state; afterwards the generators continue as if it had not run.
  void run(const std::function<void()>& fn) const;

 private:
  at::Tensor cpu_;
  std::vector<std::pair<at::Device, at::Tensor>> devices_;
};

}  // namespace lockstep::inline v0::activations::internal
