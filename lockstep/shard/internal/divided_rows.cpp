#include "lockstep/shard/internal/divided_rows.h"

#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "lockstep/comm/functional.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/context/context_layout.h"
#include "lockstep/parallel/tensor/tensor_regions.h"

namespace lockstep::inline v0::internal {
namespace {

// What `work` makes of rows in dim 0, for those in dim -2.
at::Tensor on_rows(const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& work) {
  if (x.dim() < 2)
    throw InvalidArgument("parallelize: a module that is given rows gets a tensor of " +
                          std::to_string(x.dim()) + " dims; give it [.., rows, columns]");
  if (x.dim() == 2) return work(x.contiguous());
  return work(x.movedim(-2, 0).contiguous()).movedim(0, -2).contiguous();
}

bool has_style(const TensorPlan& plan, TensorStyle style) {
  for (const TensorRule& rule : plan.rules())
    if (rule.style == style) return true;
  return false;
}

at::Tensor rows_of(int64_t rows, int64_t rank, int64_t ranks) {
  return at::tensor(context_rows({rows}, rank, ranks), at::kLong);
}

}  // namespace

at::Tensor own_rows_of(const Communicator& context, int64_t rows, at::Device device) {
  const int64_t ranks = context.size();
  if (rows % (2 * ranks) != 0)
    throw InvalidArgument("parallelize: " + std::to_string(rows) + " tokens do not divide among " +
                          std::to_string(ranks) + " ranks along context; give a multiple of " +
                          std::to_string(2 * ranks));
  return device::copy_to(rows_of(rows, context.rank(), ranks), device);
}

DividedRows::DividedRows(Communicator tensor, bool by_parts, std::optional<Communicator> context,
                         const TensorPlan& plan)
    : tensor_(std::move(tensor)),
      by_parts_(by_parts && tensor_.size() > 1),
      context_(std::move(context)),
      begin_inside_(has_style(plan, TensorStyle::kRowsBegin)),
      end_inside_(has_style(plan, TensorStyle::kRowsEnd)) {}

at::Tensor DividedRows::enter(const at::Tensor& x) const {
  if (!by_parts_) return copy_to_parts(tensor_, x);
  return on_rows(x, [this](const at::Tensor& rows) { return gather_rows(tensor_, rows); });
}

at::Tensor DividedRows::leave(const at::Tensor& sum) const {
  if (!by_parts_) return reduce_from_parts(tensor_, sum);
  return on_rows(sum, [this](const at::Tensor& rows) { return scatter_rows(tensor_, rows); });
}

at::Tensor DividedRows::leave_words(const at::Tensor& sum) const {
  return begin_inside_ ? reduce_from_parts(tensor_, sum) : leave(sum);
}

at::Tensor DividedRows::enter_head(const at::Tensor& x) const {
  return end_inside_ ? copy_to_parts(tensor_, x) : enter(x);
}

at::Tensor DividedRows::begin(const at::Tensor& x) const {
  at::Tensor own = x;
  // The other rows' gradients are zeros here, and the mean over the ranks makes them whole (end()).
  if (parts_of_context() > 1)
    own = own.index_select(-2, own_rows_of(*context_, own.size(-2), own.device()));
  if (!by_parts_) return own;
  return on_rows(own, [this](const at::Tensor& rows) { return take_rows(tensor_, rows); });
}

at::Tensor DividedRows::end(const at::Tensor& x) const {
  at::Tensor all = x;
  if (by_parts_)
    all = on_rows(all, [this](const at::Tensor& rows) { return join_rows(tensor_, rows); });
  const int64_t ranks = parts_of_context();
  if (ranks == 1) return all;
  // Every rank goes on to the same loss, so backward gives each its rows' gradients times the number of ranks, of which
  // the mean over the ranks is right.
  all = on_rows(all,
                [this](const at::Tensor& rows) { return functional::all_gather(*context_, rows); });
  std::vector<at::Tensor> order;
  for (int64_t rank = 0; rank < ranks; ++rank) order.push_back(rows_of(all.size(-2), rank, ranks));
  return all.index_select(-2, device::copy_to(at::argsort(at::cat(order)), all.device()));
}

at::Tensor DividedRows::own_positions(const at::Tensor& positions) const {
  at::Tensor own = positions;
  if (begin_inside_) return own;
  if (parts_of_context() > 1) {
    const int64_t rows = own.size(-1) * parts_of_context();
    own = own_rows_of(*context_, rows, own.device()).index_select(0, own.flatten()).view_as(own);
  }
  if (!by_parts_) return own;
  const int64_t rows = own.size(-1), parts = tensor_.size();
  if (rows % parts != 0)
    throw InvalidArgument("parallelize: " + std::to_string(rows) + " rows do not divide among " +
                          std::to_string(parts) + " parts");
  return own.narrow(-1, tensor_.rank() * (rows / parts), rows / parts);
}

void DividedRows::share(const at::Tensor& parameter) const {
  if (!by_parts_ || !parameter.requires_grad()) return;
  parameter.register_hook([handle = tensor_](const at::Tensor& gradient) {
    return reduce_from_parts(handle, gradient);
  });
}

}  // namespace lockstep::inline v0::internal
