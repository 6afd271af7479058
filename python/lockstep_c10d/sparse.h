// SparseSum: the sum of all ranks' sparse COO tensors, which differ in what they hold.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "executor.h"

namespace lockstep::inline v0::python {

// The ranks gather their shapes and counts, then their indices, then their values; every rank adds
// all of them, in rank order. Lives until finish().
class SparseSum : public std::enable_shared_from_this<SparseSum> {
 public:
  // Throws InvalidArgument for more than 12 dimensions.
  explicit SparseSum(const at::Tensor& tensor);

  std::vector<Task::Step> steps();
  // Puts the sum into the tensor. Throws Mismatch if the ranks' shapes differ.
  void finish();

 private:
  std::vector<int64_t> counts(int64_t width) const;  // of entries, times `width`

  at::Tensor tensor_;
  at::Tensor own_;      // coalesced
  int64_t width_ = 1;   // elements of one entry's value
  at::Tensor shapes_;   // a row a rank: sparse dims, dense dims, entries, sizes
  at::Tensor indices_;  // all ranks'
  at::Tensor values_;
};

}  // namespace lockstep::inline v0::python
