// Activation checkpointing: a part of a model keeps only its inputs, and computes the rest again in
// backward (Chen et al., arXiv:1604.06174). It trades time for memory: one more forward of that
// part.
//
//   const at::Tensor y =
//       lockstep::checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x);
//
// Gradients have the same bits as without checkpointing: the second forward draws the same random
// numbers as the first (from the CPU's generator, the thread's own, and those of the inputs'
// devices), and runs under the same autocast. This does not hold if another thread draws from the
// same generator while a part runs.
//
// Parts may be nested, and work with DistributedDataParallel, ZeroOptimizer in all stages and
// no_sync(). A part's parameters get their gradients in a backward inside the backward, so
// torch::autograd::grad() does not see them, and a graph of gradients (create_graph) is not made.
// Side effects of the part happen twice: a BatchNorm's running statistics, a counter.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/flat/nested.h"

namespace lockstep::inline v0 {

// The options of checkpoint().
struct CheckpointOptions {
  // Copies inputs that the model has computed on a device to pinned host memory, on a stream beside
  // the forward's, and brings them back one part ahead of backward. Gradients keep their bits and
  // the host does not wait; the device holds the inputs of two or three parts instead of all.
  // Inputs on the CPU and views with gaps stay where they are. Changing an input in place after the
  // part has run is then no error: the copy has the old values.
  bool offload = false;
};

namespace activations::internal {

using Tensors = std::vector<at::Tensor>;
// Maps the tensors of the inputs to those of the result.
using TensorFunction = std::function<Tensors(const Tensors& inputs)>;

// Returns the result's tensors, whose backward computes them again. Undefined tensors stay
// undefined.
LOCKSTEP_API Tensors run_again_in_backward(TensorFunction function, const Tensors& inputs,
                                           const CheckpointOptions& options);

}  // namespace activations::internal

// Calls fn(inputs...). fn and the inputs, tensors or not, are copied and kept until backward;
// objects that fn refers to must live as long. Tensors of inputs and result may lie in vectors,
// tuples and structs (flat/nested.h). Without gradients (NoGradGuard) this is a plain call. Throws
// what fn throws, and InvalidArgument if fn changes an input in place; in backward, Error if fn
// returns another number of tensors than before, and autograd's error if an input has changed
// since.
// Thread-safety: any thread; backward runs fn on its own thread.
template <typename F, typename... Inputs>
auto checkpoint(const CheckpointOptions& options, F fn, Inputs... inputs) {
  using Result = std::decay_t<std::invoke_result_t<F&, Inputs&...>>;
  std::tuple<Inputs...> arguments(std::move(inputs)...);
  const activations::internal::Tensors given = flat::tensors_of(arguments);
  std::optional<Result> result;
  // Arguments that kept their tensors would hold them besides those that autograd saves.
  flat::set_tensors(arguments, activations::internal::Tensors(given.size()));
  const activations::internal::Tensors outputs = activations::internal::run_again_in_backward(
      [fn = std::move(fn), arguments = std::move(arguments),
       first = &result](const activations::internal::Tensors& tensors) mutable {
        std::tuple<Inputs...> own = arguments;
        flat::set_tensors(own, tensors);
        Result computed = std::apply(fn, own);
        activations::internal::Tensors outputs = flat::tensors_of(computed);
        // Only the first call's result goes to this function.
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

}  // namespace lockstep::inline v0
