// Activation checkpointing: a part of a model keeps its inputs only, and computes the rest again in
// backward (Chen et al., arXiv:1604.06174). Memory for time: a forward more, of that part.
//
//   const at::Tensor y = lockstep::checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x);
//
// Gradients have the same bits as without: the second time draws the random numbers of the first
// (the CPU's, the thread's own, those of the inputs' devices), and runs under the same autocast. A thread
// that draws from the same generator while a part runs changes that.
//
// Parts nest, and go with DistributedDataParallel, ZeroOptimizer in all stages and no_sync(). A part's
// parameters get their gradients in a backward inside the backward, so torch::autograd::grad() of them
// does not see them, and a graph of gradients (create_graph) is not made. What the part changes beside
// its result, it changes twice: a BatchNorm's running statistics, a counter.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/flat/nested.h"

namespace lockstep {

struct CheckpointOptions {
  // Inputs that lie on a device, and that the model has computed, go to pinned host memory while forward goes on, on a
  // stream beside it, and come back one part ahead of backward. The same bits, and no wait of the host; the device has
  // the inputs of two or three parts instead of all. What lies on the CPU stays where it is: there it does nothing; so does a
  // view with gaps. An input that is changed in place after the part has run is no error then: what is kept is what it was.
  bool offload = false;
};

namespace activations::internal {

using Tensors = std::vector<at::Tensor>;
// From the tensors of the inputs to those of the result.
using TensorFunction = std::function<Tensors(const Tensors& inputs)>;

// The result's tensors, whose backward computes them again. Undefined ones stay undefined.
Tensors run_again_in_backward(TensorFunction function, const Tensors& inputs,
                              const CheckpointOptions& options);

}  // namespace activations::internal

// fn(inputs...), which is copied together with its inputs and kept until backward; so are inputs that
// are no tensors. What fn refers to must live as long. Tensors of inputs and result may lie in vectors,
// tuples and structs (flat/nested.h). Without gradients (NoGradGuard) a plain call. On any thread;
// backward runs fn on the thread that it has. Throws what fn throws, and InvalidArgument where fn changes
// an input in place; in backward Error, where fn gives another number of tensors than before, and
// autograd's error where an input has changed since.
template <typename F, typename... Inputs>
auto checkpoint(const CheckpointOptions& options, F fn, Inputs... inputs) {
  using Result = std::decay_t<std::invoke_result_t<F&, Inputs&...>>;
  std::tuple<Inputs...> arguments(std::move(inputs)...);
  const activations::internal::Tensors given = flat::tensors_of(arguments);
  std::optional<Result> result;
  // The arguments' own tensors would be kept beside those that autograd saves.
  flat::set_tensors(arguments, activations::internal::Tensors(given.size()));
  const activations::internal::Tensors outputs = activations::internal::run_again_in_backward(
      [fn = std::move(fn), arguments = std::move(arguments),
       first = &result](const activations::internal::Tensors& tensors) mutable {
        std::tuple<Inputs...> own = arguments;
        flat::set_tensors(own, tensors);
        Result computed = std::apply(fn, own);
        activations::internal::Tensors outputs = flat::tensors_of(computed);
        // Only the first call is this function's.
        if (auto* const to = std::exchange(first, nullptr)) *to = std::move(computed);
        return outputs;
      },
      given, options);
  flat::set_tensors(*result, outputs);
  return std::move(*result);
}
template <typename F, typename... Inputs>
auto checkpoint(F fn, Inputs... inputs) {
  return checkpoint(CheckpointOptions{}, std::move(fn), std::move(inputs)...);
}

}  // namespace lockstep
