// Matrix products of a layer, by libtorch's, in the layouts that they are fast in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::inline v0::internal {

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

// A right matrix of products in bfloat16, packed for them (kernels::kPanel): its rows padded by zeros to whole
// tiles (kTileRows), its columns to kernels::kPad.
struct Panels {
  at::Tensor data;
  int64_t inner = 0;
  int64_t columns = 0;
};
Panels panels_of(const at::Tensor& x);             // of bfloat16 [inner, columns]
Panels panels_of_transposed(const at::Tensor& x);  // of bfloat16 [columns, inner]

// a right in float32 into `out` [rows, >= right.columns], or added to it. `a` is bfloat16 [rows, inner], and
// what lies between its inner columns and whole tiles is 0. Pieces of so many rows and columns (a multiple of
// kernels::kPanel) are shared among threads.
struct FloatProduct {
  bool adds = false;
  int64_t rows_at_a_time = 256;
  int64_t columns_at_a_time = 1024;
};
void float_product(const at::Tensor& out, const at::Tensor& a, const Panels& right,
                   const FloatProduct& how);

// dy^T x in float32: dy [rows, n], x [rows, m] -> [n, m]. For bfloat16 dy_columns is dy's transpose
// (empty_columns()) and dy is not looked at.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& dy_columns, const at::Tensor& x);

}  // namespace lockstep::inline v0::internal
