// GraphedStep: a whole step of training, forward to optimizer, as one graph of the device. The host
// gives it by one launch, where eagerly it gives thousands of operations.
//
//   GraphedStep step({.device = device}, [&](const at::Tensor& images, const at::Tensor& labels) {
//     optimizer.zero_grad();
//     at::Tensor loss = loss_of(model->forward(images), labels);
//     loss.backward();
//     optimizer.step({.max_norm = 1.0, .on_non_finite = optim::NonFinite::kSkip});
//     return loss;
//   });
//   for (auto& batch : loader) loss_sum.add(step(batch.data, batch.target));
//
// The first steps run eagerly, then one is captured, and each later one copies its batch to where
// the graph reads it and replays the graph. docs/gpu.md says what a step may do, and what not.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/flat/nested.h"
#include "lockstep/graph/step_graphs.h"

namespace lockstep {

// Used by one thread at a time. Whatever the step uses outlives it.
//
// `Step` takes a batch, its arguments, and returns the loss, a tensor, or nothing. It begins with
// zero_grad(), for a graph's gradients are its own. It does the whole work of a
// step, and in every step the same: what it decides by a value of the host's stays as it was at the
// capture. Exceptions are learning rates and step counts of FusedAdamW, FusedAdam and FusedSGD, which
// go on as ever.
//
// The tensors of a batch are found as those of a forward's arguments (flat/nested.h); numbers may
// stand beside them. Shapes, dtypes and strides of those on the device, values of those on the
// host, and numbers say which graph is replayed.
template <typename Step>
class GraphedStep {
 public:
  // Throws InvalidArgument for options out of range, and, with Uncapturable::kThrow, where there
  // are no graphs (device::why_no_graphs()).
  GraphedStep(const GraphedStepOptions& options, Step step)
      : graphs_(options), step_(std::move(step)) {}

  // One step. All ranks call, for the same graph or all without one. The host does not wait for the device, but
  // before the capture, once. The loss is ordered for this thread's current stream; that of a graph
  // is overwritten by its next step.
  //
  // Throws what the step throws; InvalidArgument for what cannot be captured, as options say;
  // the device has done nothing then, gradients and counts of steps are as before, and the same
  // step may be done eagerly. What ranks find out about
  // each other (Timeout, Mismatch, PeerLost) before a replay is thrown by it, later as by any call.
  template <typename... Inputs>
  at::Tensor operator()(const Inputs&... inputs) {
    std::tuple<Inputs...> batch(inputs...);
    std::string numbers;
    std::apply([&](auto&... input) { (add(input, numbers), ...); }, batch);
    return graphs_.call(flat::tensors_of(batch), numbers,
                        [&](const std::vector<at::Tensor>& tensors) {
                          std::tuple<Inputs...> placed = batch;
                          flat::set_tensors(placed, tensors);
                          if constexpr (std::is_void_v<std::invoke_result_t<Step&, Inputs&...>>) {
                            std::apply(step_, placed);
                            return at::Tensor();
                          } else {
                            return at::Tensor(std::apply(step_, placed));
                          }
                        });
  }

  // Where steps run. What holds nodes of autograd's graph from its construction on, as
  // DistributedDataParallel does, is made while this, GraphedStepOptions::stream, is the current one.
  const c10::Stream& stream() const { return graphs_.stream(); }
  // Graphs that there are.
  int captured() const { return graphs_.captured(); }
  // Why steps run eagerly for good; empty: they do not.
  const std::string& why_eager() const { return graphs_.why_eager(); }

 private:
  template <typename Input>
  static void add(Input& input, std::string& numbers) {
    if constexpr (std::is_arithmetic_v<Input> || std::is_enum_v<Input>) {
      numbers.append(reinterpret_cast<const char*>(&input), sizeof input);
    } else if (flat::tensors_of(input).empty()) {
      internal::refuse_argument(typeid(Input).name());
    }
  }

  internal::StepGraphs graphs_;
  Step step_;
};

}  // namespace lockstep
