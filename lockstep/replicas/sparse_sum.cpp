#include "lockstep/replicas/sparse_sum.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <algorithm>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::internal {
namespace {

// Returns all ranks' rows, in rank order.
at::Tensor gather_rows(Communicator& comm, const at::Tensor& rows,
                       const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (const int64_t n : counts) total += n;
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = total;
  const at::Tensor all = at::empty(shape, rows.options());
  comm.iall_gatherv(all, rows, counts).wait();
  return all;
}

}  // namespace

at::Tensor sum_sparse(Communicator& comm, const at::Tensor& own, const at::Tensor& parameter) {
  const at::IntArrayRef shape = parameter.sizes();
  const at::Tensor mine = own.defined() ? own.detach().coalesce() : own;
  const at::Tensor facts = at::empty({1, 2}, at::kLong);
  facts[0][0] = mine.defined() ? mine._nnz() : -1;
  facts[0][1] = mine.defined() ? mine.sparse_dim() : 0;
  const at::Tensor all_ranks = comm.all_gather(facts);
  const auto* said = all_ranks.const_data_ptr<int64_t>();
  std::vector<int64_t> counts;
  int64_t sparse_dim = 0;
  for (int r = 0; r < comm.size(); ++r) {
    counts.push_back(std::max<int64_t>(said[2 * r], 0));
    if (said[2 * r] < 0) continue;
    if (sparse_dim != 0 && sparse_dim != said[2 * r + 1])
      throw InvalidArgument("sparse gradients of one parameter differ in their sparse dims");
    sparse_dim = said[2 * r + 1];
  }
  if (sparse_dim == 0) return {};  // no rank has one

  std::vector<int64_t> row{0};
  for (size_t d = static_cast<size_t>(sparse_dim); d < shape.size(); ++d) row.push_back(shape[d]);
  const at::TensorOptions options =
      at::TensorOptions(parameter.scalar_type()).device(parameter.device());
  const at::Tensor indices = mine.defined() ? mine.indices().t().contiguous()
                                            : at::empty({0, sparse_dim}, options.dtype(at::kLong));
  const at::Tensor values = mine.defined() ? mine.values().contiguous() : at::empty(row, options);
  const at::Tensor all_indices = gather_rows(comm, indices, counts);
  const at::Tensor all_values = gather_rows(comm, values, counts);
  return at::sparse_coo_tensor(all_indices.t(), all_values, shape).coalesce();
}

}  // namespace lockstep::inline v0::internal
