#include "sparse.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lockstep/core/errors.h"
#include "rows.h"

namespace lockstep::inline v0::python {
namespace {

constexpr int64_t kShape = 16;  // numbers a rank; 3 counts, then the sizes

}  // namespace

SparseSum::SparseSum(const at::Tensor& tensor) : tensor_(tensor), own_(tensor.detach().coalesce()) {
  if (tensor_.dim() > kShape - 4) {
    throw InvalidArgument("all_reduce: a sparse tensor of " + std::to_string(tensor_.dim()) +
                          " dimensions; at most 12");
  }
  const at::Tensor values = own_.values();
  for (int64_t d = 1; d < values.dim(); ++d) width_ *= values.size(d);
}

std::vector<int64_t> SparseSum::counts(int64_t width) const {
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < shapes_.size(0); ++r)
    counts.push_back(shapes_.const_data_ptr<int64_t>()[r * kShape + 2] * width);
  return counts;
}

std::vector<Task::Step> SparseSum::steps() {
  const auto self = shared_from_this();
  const auto exchange_shapes = [self](Communicator& comm, Site site) {
    const at::Tensor own = at::zeros({1, kShape}, at::kLong);
    auto* numbers = own.mutable_data_ptr<int64_t>();
    numbers[0] = self->own_.sparse_dim();
    numbers[1] = self->own_.dense_dim();
    numbers[2] = self->own_._nnz();
    for (int64_t d = 0; d < self->own_.dim(); ++d) numbers[3 + d] = self->own_.size(d);
    self->shapes_ = at::empty({comm.size(), kShape}, at::kLong);
    return comm.iall_gather(self->shapes_, own, site);
  };
  const auto exchange_indices = [self](Communicator& comm, Site site) {
    const at::Tensor own = self->own_.indices().t().contiguous().view({-1});
    const std::vector<int64_t> counts = self->counts(self->own_.sparse_dim());
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    self->indices_ = at::empty({total}, at::kLong);
    return comm.iall_gatherv(self->indices_, own, counts, site);
  };
  const auto exchange_values = [self](Communicator& comm, Site site) {
    const Row own = row_to_reduce(self->own_.values(), /*complex_as_pairs=*/true);
    const int64_t width = self->own_._nnz() == 0
                              ? self->width_ * (self->tensor_.is_complex() ? 2 : 1)
                              : own.wire.numel() / self->own_._nnz();
    const std::vector<int64_t> counts = self->counts(width);
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    self->values_ = at::empty({total}, own.wire.options());
    return comm.iall_gatherv(self->values_, own.wire, counts, site);
  };
  return {exchange_shapes, exchange_indices, exchange_values};
}

void SparseSum::finish() {
  const auto* numbers = shapes_.const_data_ptr<int64_t>();
  for (int64_t r = 1; r < shapes_.size(0); ++r) {
    for (int64_t i = 0; i < kShape; ++i) {
      if (i == 2 || numbers[r * kShape + i] == numbers[i]) continue;
      throw Mismatch("all_reduce: ranks 0 and " + std::to_string(r) +
                     " gave sparse tensors of different shapes");
    }
  }
  const std::vector<int64_t> entries = counts(1);
  int64_t total = 0;
  for (const int64_t n : entries) total += n;
  std::vector<int64_t> shape = own_.values().sizes().vec();
  shape[0] = total;
  const at::Tensor values = values_.view(tensor_.scalar_type()).view(shape);
  const at::Tensor indices = indices_.view({total, own_.sparse_dim()}).t();
  at::Tensor sum;
  int64_t begin = 0;
  for (const int64_t n : entries) {
    const at::Tensor part =
        at::_sparse_coo_tensor_unsafe(indices.narrow(1, begin, n).contiguous(),
                                      values.narrow(0, begin, n).contiguous(), tensor_.sizes());
    sum = sum.defined() ? sum.add(part) : part;
    begin += n;
  }
  const at::NoGradGuard
      no_grad;  // detach() of a sparse tensor would not share what copy_() replaces
  tensor_.copy_(sum.coalesce());
}

}  // namespace lockstep::inline v0::python
