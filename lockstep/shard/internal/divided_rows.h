// Rows, dim -2 of what goes through a model, of which each rank has its own: along tensor between the divided products
// (sequence parallelism, Korthikanti et al., arXiv:2205.05198), along context all through the layers. Not used directly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/parallel/tensor/tensor_plan.h"

namespace lockstep::inline v0::internal {

// One thread, the communicators'. All but own_positions() and share() are collective where rows are divided.
class DividedRows {
 public:
  // `by_parts`: along `tensor`, too. Rows begin at the model's inputs and go on to its outputs, unless modules of the plan
  // have styles rows begin and rows end.
  DividedRows(Communicator tensor, bool by_parts, std::optional<Communicator> context,
              const TensorPlan& plan);

  bool by_parts() const { return by_parts_; }
  bool any() const { return by_parts_ || parts_of_context() > 1; }
  bool begin_inside() const { return begin_inside_; }
  bool end_inside() const { return end_inside_; }

  // Before and after a product whose columns are divided: rows are put together for it, where they are divided along tensor.
  at::Tensor enter(const at::Tensor& x) const;
  at::Tensor leave(const at::Tensor& sum) const;
  // The same of an embedding's words and of a head's, which may stand where all parts have all rows.
  at::Tensor leave_words(const at::Tensor& sum) const;
  at::Tensor enter_head(const at::Tensor& x) const;

  at::Tensor begin(const at::Tensor& x) const;
  at::Tensor end(const at::Tensor& x) const;
  // This rank's positions in the whole sequence, from those [.., rows] of rows that the model sees.
  at::Tensor own_positions(const at::Tensor& positions) const;
  // From now on its gradient, of this part's rows, is added up over the parts.
  void share(const at::Tensor& parameter) const;

 private:
  int64_t parts_of_context() const { return context_ ? context_->size() : 1; }

  Communicator tensor_;
  bool by_parts_;
  std::optional<Communicator> context_;
  bool begin_inside_ = false, end_inside_ = false;
};

// This rank's rows of the `rows` of a sequence, ascending: int64, on that device. Throws
// InvalidArgument unless twice the number of ranks divides them.
at::Tensor own_rows_of(const Communicator& context, int64_t rows, at::Device device);

}  // namespace lockstep::inline v0::internal
