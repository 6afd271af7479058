// Matrix products of a layer, by libtorch's, in the layouts that they are fast in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::internal {

// oneDNN compiles its products anew for every number of rows, for tens of milliseconds a layer, and
// multiplies what lies behind a row's end, up to a tile's width, by zeros. So rows in bfloat16 come
// in multiples of this.
inline constexpr int64_t kTileRows = 32;

// a b^T.
at::Tensor times_transposed(const at::Tensor& a, const at::Tensor& b);
// a b.
at::Tensor times(const at::Tensor& a, const at::Tensor& b);
// a b^T + bias, into `out`.
void affine_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& bias);

// [columns, rows] of bfloat16, not initialised, whose rows are apart from each other by more than a
// power of two: else what is written down a column would fall into the same few lines of the cache.
at::Tensor empty_columns(int64_t rows, int64_t columns);

// dy^T x in float32: dy [rows, n], x [rows, m] -> [n, m]. For bfloat16 dy_columns is dy's transpose
// (empty_columns()) and dy is not looked at.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& dy_columns, const at::Tensor& x);

}  // namespace lockstep::internal
