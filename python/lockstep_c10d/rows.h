// Rows: tensors as the flat, contiguous memory that a communicator carries.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::inline v0::python {

// A tensor's elements as one row: its own memory where that is contiguous, else a copy.
struct Row {
  at::Tensor tensor;  // the caller's
  at::Tensor whole;   // contiguous, the caller's dtype
  at::Tensor wire;    // 1-dim view of `whole` in a dtype that the communicator carries
  bool copied = false;

  // Puts a copy's elements into the caller's tensor.
  void restore() const;
};

// To move: every dtype, as bytes if need be. Throws InvalidArgument for what is no dense CPU
// tensor.
Row row_to_move(const at::Tensor& tensor);
// To reduce: complex numbers as pairs of real ones, if `complex_as_pairs`.
Row row_to_reduce(const at::Tensor& tensor, bool complex_as_pairs);

// The tensors' elements one after another. The tensors' own memory if they lie so and are
// `borrow`ed (then it is written through), else new memory: filled from them if `fill`.
struct Joined {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> counts;  // wire elements of each
  at::Tensor wire;
  bool copied = false;

  // Puts a copy's elements into the callers' tensors.
  void restore() const;
};
Joined join_to_move(const std::vector<at::Tensor>& tensors, bool fill);
Joined join_to_reduce(const std::vector<at::Tensor>& tensors, bool complex_as_pairs);

}  // namespace lockstep::inline v0::python
