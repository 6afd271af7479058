#include "lockstep/model/internal/products.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "lockstep/kernels/kernels.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::internal {
namespace {

int64_t whole_tiles(int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}

// x as the right matrix of products, in panels (kernels::kPanel), its rows padded by zeros.
at::Tensor packed(const at::Tensor& x, int64_t inner) {
  const int64_t columns = x.size(1);
  const at::Tensor result = at::empty({inner * columns}, at::kBFloat16);
  const auto* const from = x.const_data_ptr<at::BFloat16>();
  auto* const to = result.mutable_data_ptr<at::BFloat16>();
  const auto pack = [&](int64_t begin, int64_t end) {
    kernels::kernels().pack_rows(
        {kernels::Type::kBFloat16, from + begin, x.size(0), end - begin, x.stride(0)}, inner,
        end - begin, to + begin * inner);
  };
  kernels::in_parallel(columns, kernels::kPanel, at::get_num_threads(), pack);
  return result;
}

// Straight to float32: a product in bfloat16 would be rounded, written and widened again.
at::Tensor float_product(const at::Tensor& a, const at::Tensor& x) {
  constexpr int64_t kRows = 256, kInner = 512;  // a block of `a` fits the second-level cache
  const int64_t inner = whole_tiles(a.size(1)), columns = x.size(1), rows = a.size(0);
  const at::Tensor right = packed(x, inner), result = at::empty({rows, columns}, at::kFloat);
  const auto* const left = a.const_data_ptr<at::BFloat16>();
  const auto* const panels = right.const_data_ptr<at::BFloat16>();
  float* const to = result.mutable_data_ptr<float>();
  kernels::in_parallel(rows, kRows, at::get_num_threads(), [&](int64_t begin, int64_t end) {
    for (int64_t k = 0; k < inner; k += kInner)
      for (int64_t c = 0; c < columns; c += kernels::kPanel) {
        const int64_t width = std::min(kernels::kPanel, columns - c);
        at::native::cpublas::brgemm(end - begin, width, std::min(kInner, inner - k), a.stride(0),
                                    width, columns, /*add_C=*/k > 0, left + begin * a.stride(0) + k,
                                    panels + c * inner + k * width, to + begin * columns + c);
      }
    at::native::cpublas::brgemm_release();
  });
  return result;
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

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& dy_columns,
                           const at::Tensor& x) {
  if (!dy_columns.defined()) return at::mm(dy.t(), x);
  if (x.size(1) % kernels::kPad == 0 && x.stride(1) == 1) return float_product(dy_columns, x);
  return at::mm(dy_columns, x).to(at::kFloat);
}

}  // namespace lockstep::internal
