// StepGraphs: the part of GraphedStep that knows no types. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/device/graph.h"

namespace lockstep {

// What follows where a step cannot be captured.
enum class Uncapturable {
  kThrow,  // InvalidArgument, which says what and where
  kEager,  // the same line as a warning, once; this and all later steps run eagerly
};

struct GraphedStepOptions {
  // Without a number the current one of its type.
  at::Device device = at::kCUDA;
  // Where steps run, eagerly and as graphs; not the default stream. None: one beside it
  // (GraphedStep::stream()).
  std::optional<c10::Stream> stream = std::nullopt;
  // Eager steps before a capture, for batches of its shapes. Libraries choose their kernels in
  // them, optimizers make their state, DistributedDataParallel its buckets. At least 2.
  int warm_up = 3;
  // For how many shapes of a batch there is a graph, the first ones that come. Each has memory of
  // its own. Batches of other shapes run eagerly.
  int graphs = 1;
  // Parameters may change by other means than an optimizer of Lockstep's: the same ones in every
  // step. torch's own optimizers take numbers from the host that a graph would repeat.
  bool fixed_updates = false;
  Uncapturable uncapturable = Uncapturable::kThrow;
};

namespace internal {

class StepGraphs {
 public:
  // The step on tensors in place of the batch's.
  using Run = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

  explicit StepGraphs(const GraphedStepOptions& options);
  ~StepGraphs();

  // `others`: what else of the batch must be as it was at the capture.
  at::Tensor call(const std::vector<at::Tensor>& batch, const std::string& others, const Run& run);

  const c10::Stream& stream() const { return stream_; }
  int captured() const;
  const std::string& why_eager() const { return why_eager_; }

 private:
  class Operators;
  struct Shape;

  Shape* shape_of(const std::string& key);
  at::Tensor on_stream(Shape* shape, const std::vector<at::Tensor>& batch, const Run& run);
  void check_updates(const Shape& shape, const Operators& operators) const;
  void capture(Shape& shape, const std::vector<at::Tensor>& batch, const Run& run);
  void give_up(const std::string& why);

  GraphedStepOptions options_;
  c10::Stream stream_;
  std::vector<std::unique_ptr<Shape>> shapes_;
  std::string why_eager_;
};

// A type of which nobody can find the tensors.
[[noreturn]] void refuse_argument(const char* type);

}  // namespace internal
}  // namespace lockstep
