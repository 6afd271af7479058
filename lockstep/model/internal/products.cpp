#include "lockstep/model/internal/products.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "lockstep/kernels/kernels.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::inline v0::internal {
namespace {

int64_t whole_tiles(int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}
int64_t padded(int64_t columns) {
  return (columns + kernels::kPad - 1) / kernels::kPad * kernels::kPad;
}

}  // namespace

at::Tensor times_transposed(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a, b.t());
}

at::Tensor times(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a, b);
}

void affine_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& bias) {
  at::Tensor result = out;
  at::addmm_out(result, bias, a, b.t());
}

at::Tensor empty_columns(int64_t rows, int64_t columns) {
  const int64_t pitch = whole_tiles(rows) + kTileRows;
  const at::Tensor whole = at::empty({columns, pitch}, at::kBFloat16);
  if (rows % kTileRows != 0) whole.narrow(1, rows, pitch - rows).zero_();
  return whole.narrow(1, 0, rows);
}

Panels panels_of(const at::Tensor& x) {
  const int64_t inner = whole_tiles(x.size(0)), columns = padded(x.size(1));
  const at::Tensor result = at::empty({inner * columns}, at::kBFloat16);
  const auto* const from = x.const_data_ptr<at::BFloat16>();
  auto* const to = result.mutable_data_ptr<at::BFloat16>();
  kernels::in_parallel(
      columns, kernels::kPanel, at::get_num_threads(), [&](int64_t begin, int64_t end) {
        kernels::kernels().pack_rows({kernels::Type::kBFloat16, from + begin, x.size(0),
                                      std::min(end, x.size(1)) - begin, x.stride(0)},
                                     inner, end - begin, to + begin * inner);
      });
  return {result, inner, columns};
}

Panels panels_of_transposed(const at::Tensor& x) {
  const int64_t inner = whole_tiles(x.size(1)), columns = padded(x.size(0));
  const at::Tensor result = at::empty({inner * columns}, at::kBFloat16);
  const auto* const from = x.const_data_ptr<at::BFloat16>();
  auto* const to = result.mutable_data_ptr<at::BFloat16>();
  kernels::in_parallel(
      columns, kernels::kPanel, at::get_num_threads(), [&](int64_t begin, int64_t end) {
        kernels::kernels().pack_columns({kernels::Type::kBFloat16, from + begin * x.stride(0),
                                         std::min(end, x.size(0)) - begin, x.size(1), x.stride(0)},
                                        inner, end - begin, to + begin * inner);
      });
  return {result, inner, columns};
}

void float_product(const at::Tensor& out, const at::Tensor& a, const Panels& right,
                   const FloatProduct& how) {
  constexpr int64_t kInner = 512;  // a block of `a` fits the second-level cache
  const int64_t rows = a.size(0), pitch = out.stride(0);
  const auto* const left = a.const_data_ptr<at::BFloat16>();
  const auto* const panels = right.data.const_data_ptr<at::BFloat16>();
  float* const to = out.mutable_data_ptr<float>();
  const int64_t across = (right.columns + how.columns_at_a_time - 1) / how.columns_at_a_time;
  const int64_t down = (rows + how.rows_at_a_time - 1) / how.rows_at_a_time;
  const auto piece = [&](int64_t row, int64_t column) {
    const int64_t height = std::min(how.rows_at_a_time, rows - row);
    const int64_t end = std::min(right.columns, column + how.columns_at_a_time);
    for (int64_t k = 0; k < right.inner; k += kInner)
      for (int64_t c = column; c < end; c += kernels::kPanel) {
        const int64_t width = std::min(kernels::kPanel, end - c);
        at::native::cpublas::brgemm(height, width, std::min(kInner, right.inner - k), a.stride(0),
                                    width, pitch, how.adds || k > 0, left + row * a.stride(0) + k,
                                    panels + c * right.inner + k * width, to + row * pitch + c);
      }
  };
  kernels::in_parallel(down * across, 1, at::get_num_threads(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      piece(i / across * how.rows_at_a_time, i % across * how.columns_at_a_time);
    at::native::cpublas::brgemm_release();
  });
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& dy_columns,
                           const at::Tensor& x) {
  if (!dy_columns.defined()) return at::mm(dy.t(), x);
  if (x.size(1) % kernels::kPad == 0 && x.stride(1) == 1) {
    const at::Tensor result = at::empty({dy_columns.size(0), x.size(1)}, at::kFloat);
    float_product(result, dy_columns, panels_of(x), {.columns_at_a_time = padded(x.size(1))});
    return result;
  }
  return at::mm(dy_columns, x).to(at::kFloat);
}

}  // namespace lockstep::inline v0::internal
