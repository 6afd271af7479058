#include "lockstep/model/internal/layer_math.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <functional>

#include "lockstep/kernels/parallel.h"
#include "lockstep/model/internal/products.h"

namespace lockstep::inline v0::internal {
namespace {

constexpr int64_t kElementsAtATime = int64_t{1} << 16;

using kernels::Type;

const kernels::Kernels& best() {
  return kernels::kernels();
}

void over_rows(int64_t rows, const std::function<void(int64_t, int64_t)>& body) {
  kernels::in_parallel(rows, kRowsAtATime, at::get_num_threads(), body);
}

uint16_t* shorts_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<uint16_t*>(tensor.data_ptr()) : nullptr;
}

}  // namespace

at::Tensor summed_over_rows(int64_t rows, int64_t width,
                            const std::function<void(int64_t, int64_t, float*)>& body) {
  const int64_t pieces = (rows + kRowsAtATime - 1) / kRowsAtATime;
  const at::Tensor sums = at::zeros({pieces, width}, at::kFloat);
  float* const data = sums.mutable_data_ptr<float>();
  over_rows(rows, [&](int64_t begin, int64_t end) {
    body(begin, end, data + begin / kRowsAtATime * width);
  });
  return pieces == 1 ? sums[0] : sums.sum(0);
}

Type kernel_type(at::ScalarType type) {
  return type == at::kBFloat16 ? Type::kBFloat16 : Type::kFloat32;
}

at::Tensor empty_rows(int64_t rows, int64_t columns, at::ScalarType type) {
  return at::empty({rows, columns}, type);
}

at::Tensor rounded(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> shape = tensors[0].sizes().vec();
  shape[0] = 0;
  for (const at::Tensor& tensor : tensors) shape[0] += tensor.size(0);
  const at::Tensor result = at::empty(shape, at::kBFloat16);
  uint16_t* to = shorts_of(result);
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor whole = tensor.contiguous();
    const float* const from = whole.const_data_ptr<float>();
    kernels::in_parallel(
        whole.numel(), kElementsAtATime, at::get_num_threads(),
        [&](int64_t begin, int64_t end) { best().round(from + begin, to + begin, end - begin); });
    to += whole.numel();
  }
  return result;
}

Normed norm_rows(const kernels::Norm& norm, int64_t rows, bool rounds) {
  Normed result{empty_rows(rows, norm.width, at::kFloat), {}, at::empty({2, rows}, at::kFloat)};
  if (rounds) result.rounded = empty_rows(rows, norm.width, at::kBFloat16);
  float* const mean = result.statistics.mutable_data_ptr<float>();
  const kernels::NormOutputs out{result.y.mutable_data_ptr<float>(), shorts_of(result.rounded),
                                 mean, mean + rows};
  over_rows(rows, [&](int64_t begin, int64_t end) { best().norm(norm, out, begin, end); });
  return result;
}

bool is_sole(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_contiguous() && tensor.use_count() == 1 &&
         tensor.storage().use_count() == 1;
}

NormBackward norm_rows_backward(const kernels::Norm& norm, const at::Tensor& statistics,
                                at::Tensor dy, at::Tensor dy_typed, bool has_x) {
  const int64_t rows = statistics.size(1), width = norm.width;
  NormBackward result;
  result.dz = is_sole(dy) ? dy : empty_rows(rows, width, at::kFloat);
  kernels::NormGradients g;
  g.mean = statistics.const_data_ptr<float>();
  g.rstd = g.mean + rows;
  if (dy.defined()) dy = dy.contiguous();
  if (dy_typed.defined()) dy_typed = dy_typed.contiguous();
  g.dy = dy.defined() ? dy.const_data_ptr<float>() : nullptr;
  g.dy_typed = dy_typed.defined() ? dy_typed.const_data_ptr() : nullptr;
  g.dz = result.dz.mutable_data_ptr<float>();
  if (has_x) {
    const bool is_short = norm.type == Type::kBFloat16;
    result.dx = is_sole(dy_typed) ? dy_typed
                                  : empty_rows(rows, width, is_short ? at::kBFloat16 : at::kFloat);
    g.dx = result.dx.mutable_data_ptr();
    if (is_short) {
      result.dx_columns = empty_columns(rows, width);
      g.dx_columns = shorts_of(result.dx_columns);
      g.columns_pitch = result.dx_columns.stride(0);
    }
  }
  const at::Tensor sums =
      summed_over_rows(rows, 4 * width, [&](int64_t begin, int64_t end, float* piece) {
        kernels::NormGradients mine = g;
        mine.sums = piece;
        best().norm_backward(norm, mine, begin, end);
      });
  result.dgamma = sums.narrow(0, 0, width);
  result.dbeta = sums.narrow(0, width, width);
  result.dbias = sums.narrow(0, 2 * width, width);
  return result;
}

at::Tensor activate_rows(const at::Tensor& x, const at::Tensor& bias,
                         kernels::Activation activation, bool keeps_slope) {
  const at::Tensor y = empty_rows(x.size(0), x.size(1), x.scalar_type());
  const kernels::Activate activate{x.size(1), kernel_type(x.scalar_type()), activation,
                                   x.const_data_ptr(), bias.const_data_ptr<float>()};
  const kernels::ActivateOutputs out{y.mutable_data_ptr(),
                                     keeps_slope ? x.mutable_data_ptr() : nullptr};
  over_rows(x.size(0),
            [&](int64_t begin, int64_t end) { best().activate(activate, out, begin, end); });
  return y;
}

ActivateBackward activate_rows_backward(const at::Tensor& slope, const at::Tensor& dy) {
  const int64_t rows = dy.size(0), width = dy.size(1);
  ActivateBackward result;
  kernels::ActivateGradients g;
  g.width = width;
  g.type = kernel_type(dy.scalar_type());
  g.slope = slope.const_data_ptr();
  g.dy = dy.mutable_data_ptr();
  if (g.type == Type::kBFloat16) {
    result.dx_columns = empty_columns(rows, width);
    g.dx_columns = shorts_of(result.dx_columns);
    g.columns_pitch = result.dx_columns.stride(0);
  }
  result.dbias = summed_over_rows(rows, width, [&](int64_t begin, int64_t end, float* sums) {
    kernels::ActivateGradients mine = g;
    mine.bias_sum = sums;
    best().activate_backward(mine, begin, end);
  });
  return result;
}

at::Tensor column_sums(const at::Tensor& matrix) {
  const kernels::Source source{kernel_type(matrix.scalar_type()), matrix.const_data_ptr(),
                               matrix.size(0), matrix.size(1), matrix.stride(0)};
  return summed_over_rows(
      matrix.size(0), matrix.size(1),
      [&](int64_t begin, int64_t end, float* sums) { best().sum_rows(source, sums, begin, end); });
}

}  // namespace lockstep::inline v0::internal
