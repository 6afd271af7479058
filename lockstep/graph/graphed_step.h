// GraphedStep: a whole training step, from forward to optimizer, as one graph of the device. The
// host submits it with one launch instead of thousands of eager operations.
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
// The first steps run eagerly, then one is captured; each later step copies its batch to the memory
// that the graph reads, and replays the graph. docs/gpu.md says what a step may do and what it may
// not.
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

namespace lockstep::inline v0 {

// Objects that the step uses must outlive it.
// Thread-safety: one thread at a time.
//
// `Step` takes a batch, as its arguments, and returns the loss (a tensor) or nothing. It begins
// with zero_grad(), because a graph's gradients are its own. It does the whole work of a step, and
// the same work in every step: a decision that depends on a value on the host stays as it was at
// the capture. Exceptions are the learning rates and step counts of FusedAdamW, FusedAdam and
// FusedSGD, which change as usual.
//
// The tensors of a batch are found in the same way as those of a forward's arguments
// (flat/nested.h); numbers may stand beside them. The shapes, dtypes and strides of tensors on the
// device, the values of tensors on the host, and the numbers select the graph that is replayed.
template <typename Step>
class GraphedStep {
 public:
  // Throws InvalidArgument for options out of range and, with Uncapturable::kThrow, if the device
  // has no graphs (device::why_no_graphs()).
  GraphedStep(const GraphedStepOptions& options, Step step)
      : graphs_(options), step_(std::move(step)) {}

  // Runs one step. The host does not wait for the device, except once before the capture. The loss
  // is ordered for this thread's current stream; a graph's loss is overwritten by its next step.
  // Collective: all ranks call it, either all of them with the same graph or all without one.
  //
  // Throws what the step throws, and InvalidArgument for a step that cannot be captured, as options
  // say; then the device has executed nothing, gradients and step counts are as before, and the
  // same step may be run eagerly. Errors that ranks detect about each other before a replay
  // (Timeout, Mismatch, PeerLost) are thrown by that replay; later ones are thrown as by any other
  // call.
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

  // The stream that steps run on, GraphedStepOptions::stream. Objects that hold nodes of autograd's
  // graph from their construction on, such as DistributedDataParallel, must be made while it is the
  // current stream.
  const c10::Stream& stream() const { return graphs_.stream(); }
  // The number of graphs captured.
  int captured() const { return graphs_.captured(); }
  // Why all steps run eagerly; empty: they do not.
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

}  // namespace lockstep::inline v0
