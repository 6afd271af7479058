// Tensors' side of the kernels: allocation, threads, the sums over rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/kernels/kernels.h"

namespace lockstep::inline v0::internal {

inline constexpr int64_t kRowsAtATime = 256;  // pieces of this many rows are shared among threads

kernels::Type kernel_type(at::ScalarType type);

// [rows, columns], not initialised.
at::Tensor empty_rows(int64_t rows, int64_t columns, at::ScalarType type);

// float32 -> bfloat16, the tensors one under the other.
at::Tensor rounded(const std::vector<at::Tensor>& tensors);
// The outputs of kernels::Norm.
struct Normed {
  at::Tensor y;           // float32
  at::Tensor rounded;     // bfloat16; undefined where the layer computes in float32
  at::Tensor statistics;  // float32 [2, rows]: mean, 1 / standard deviation
  const at::Tensor& typed() const { return rounded.defined() ? rounded : y; }
};
Normed norm_rows(const kernels::Norm& norm, int64_t rows, bool rounds);

struct NormBackward {
  at::Tensor dz;              // float32 [rows, width]
  at::Tensor dx, dx_columns;  // of the layer's type; the transpose for bfloat16 only
  at::Tensor dgamma, dbeta, dbias;
};
// dy, dy_typed: either may be undefined. A gradient takes its place where nothing else holds it (is_sole()).
NormBackward norm_rows_backward(const kernels::Norm& norm, const at::Tensor& statistics,
                                at::Tensor dy, at::Tensor dy_typed, bool has_x);

// A contiguous tensor that is held here alone may be overwritten; autograd's own sums do the same.
bool is_sole(const at::Tensor& tensor);

// With `keeps_slope` x becomes the slope, for backward.
at::Tensor activate_rows(const at::Tensor& x, const at::Tensor& bias,
                         kernels::Activation activation, bool keeps_slope);

struct ActivateBackward {
  at::Tensor dx_columns;  // bfloat16 only
  at::Tensor dbias;
};
// dy becomes dx.
ActivateBackward activate_rows_backward(const at::Tensor& slope, const at::Tensor& dy);

// body(begin, end, sums) adds to its own [width] sums for every piece of rows -> all, added up in order,
// so that they do not depend on the threads.
at::Tensor summed_over_rows(int64_t rows, int64_t width,
                            const std::function<void(int64_t, int64_t, float*)>& body);

// The sums of the columns, float32.
at::Tensor column_sums(const at::Tensor& matrix);

}  // namespace lockstep::inline v0::internal
