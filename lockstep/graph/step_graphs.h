// StepGraphs: the part of GraphedStep that does not depend on types. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/device/graph.h"

namespace lockstep::inline v0 {

// The reaction to a step that cannot be captured.
enum class Uncapturable {
  kThrow,  // InvalidArgument with the cause and the place
  kEager,  // a warning with the same line, once; this and all later steps run eagerly
};

// The options of a GraphedStep.
struct GraphedStepOptions {
  // Without a number: the current device of its type.
  at::Device device = at::kCUDA;
  // The stream that steps run on, eagerly and as graphs; must not be the default stream. nullopt: a
  // side stream (GraphedStep::stream()).
  std::optional<c10::Stream> stream = std::nullopt;
  // The number of eager steps before a capture, for batches of the graph's shapes. In these steps
  // libraries choose their kernels, optimizers make their state, and DistributedDataParallel makes
  // its buckets. At least 2.
  int warm_up = 3;
  // The number of batch shapes that get a graph: the first ones that occur. Each graph has memory
  // of its own. Batches of other shapes run eagerly.
  int graphs = 1;
  // Allows other code than Lockstep's optimizers to change parameters; the changes must be the same
  // in every step. torch's own optimizers take numbers from the host, which a graph would repeat.
  bool fixed_updates = false;
  Uncapturable uncapturable = Uncapturable::kThrow;  // for a step that no graph can hold
};

namespace internal {

class LOCKSTEP_API StepGraphs {
 public:
  // Runs the step on the given tensors instead of the batch's.
  using Run = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

  explicit StepGraphs(const GraphedStepOptions& options);
  ~StepGraphs();

  // `others`: the other parts of the batch, which must equal those at the capture.
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

// Reports an argument type whose tensors cannot be found.
[[noreturn]] LOCKSTEP_API void refuse_argument(const char* type);

}  // namespace internal
}  // namespace lockstep::inline v0
