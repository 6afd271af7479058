#include "lockstep/parallel/ddp/sync_batch_norm_math.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <vector>

namespace lockstep::inline v0::sync_batch_norm {
namespace {

// 16-bit inputs have statistics and parameters in float32.
at::TensorOptions parameter_options(const at::Tensor& input) {
  const bool is_short = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  return input.options()
      .dtype(is_short ? at::kFloat : input.scalar_type())
      .memory_format(c10::nullopt);
}

at::Tensor as_parameter(const at::Tensor& tensor, const at::Tensor& input) {
  return tensor.defined() ? tensor.to(parameter_options(input).dtype().toScalarType()) : tensor;
}

int64_t count_per_channel(const at::Tensor& input) {
  return input.size(1) == 0 ? 0 : input.numel() / input.size(1);
}

// Reshapes [channels] to the input's number of dimensions.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = input.size(1);
  return values.view(shape);
}

// dx = scale * grad + slope * (x - mean) + shift, in one pass. `inner` consecutive values belong to
// one channel, then the next channel follows.
template <typename T>
void input_gradient_pass(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& result,
                         const std::array<at::Tensor, 4>& factors, int64_t inner) {
  const T* const dy = grad.const_data_ptr<T>();
  const T* const x = input.const_data_ptr<T>();
  T* const dx = result.data_ptr<T>();
  const T* const scale = factors[0].const_data_ptr<T>();
  const T* const slope = factors[1].const_data_ptr<T>();
  const T* const shift = factors[2].const_data_ptr<T>();
  const T* const mean = factors[3].const_data_ptr<T>();
  const int64_t channels = input.size(1);
  if (inner > 1) {
    const int64_t planes = input.numel() / inner;
    const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / inner);
    at::parallel_for(0, planes, grain, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t c = p % channels;
        const T a = scale[c], b = slope[c], d = shift[c], m = mean[c];
        const T* const dy_p = dy + p * inner;
        const T* const x_p = x + p * inner;
        T* const dx_p = dx + p * inner;
        for (int64_t i = 0; i < inner; ++i) dx_p[i] = a * dy_p[i] + (b * (x_p[i] - m) + d);
      }
    });
  } else {
    const int64_t rows = input.numel() / channels;
    const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / channels);
    at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* const dy_r = dy + r * channels;
        const T* const x_r = x + r * channels;
        T* const dx_r = dx + r * channels;
        for (int64_t c = 0; c < channels; ++c)
          dx_r[c] = scale[c] * dy_r[c] + (slope[c] * (x_r[c] - mean[c]) + shift[c]);
      }
    });
  }
}

}  // namespace

at::Tensor forward_row(const at::Tensor& input, double tag) {
  const int64_t channels = input.size(1);
  const int64_t count = count_per_channel(input);
  at::Tensor row = at::zeros({2 + 2 * channels}, input.options().dtype(at::kDouble));
  row[0].fill_(static_cast<double>(count));
  row[1].fill_(tag);
  if (count == 0) return row;
  // float32 parameters beside a 16-bit input make the kernel compute and return float32; at
  // momentum 0 it does not change them.
  at::Tensor none_mean, none_variance;
  if (parameter_options(input).dtype() != input.dtype()) {
    none_mean = at::zeros({channels}, parameter_options(input));
    none_variance = at::ones({channels}, parameter_options(input));
  }
  const auto [mean, variance] =
      at::batch_norm_update_stats(input, none_mean, none_variance, /*momentum=*/0.0);
  row.narrow(0, 2, channels).copy_(mean);
  row.narrow(0, 2 + channels, channels).copy_(variance).mul_(static_cast<double>(count));
  return row;
}

Statistics combine_forward(const at::Tensor& rows, const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const at::Tensor counts = rows.narrow(1, 0, 1);
  const at::Tensor means = rows.narrow(1, 2, channels);
  const at::Tensor deviations = rows.narrow(1, 2 + channels, channels);
  const at::Tensor count = counts.sum();
  const at::Tensor divisor = count.clamp_min(1);
  const at::Tensor mean = (means * counts).sum(0).div_(divisor);
  const at::Tensor variance =
      (means - mean).square_().mul_(counts).add_(deviations).sum(0).div_(divisor);
  return {
      .mean = as_parameter(mean, input), .variance = as_parameter(variance, input), .count = count};
}

void update_running(const Statistics& statistics, double momentum, const at::Tensor& running_mean,
                    const at::Tensor& running_var) {
  // They are tensors, so that the host does not wait for a device.
  const at::Tensor share = (statistics.count > 0).to(at::kDouble).mul_(momentum);
  const auto update = [&share](const at::Tensor& running, const at::Tensor& batch) {
    if (!running.defined()) return;
    // Computed in float64 and rounded once.
    running.copy_(running.to(at::kDouble).mul_(1 - share).add_(batch.to(at::kDouble) * share));
  };
  update(running_mean, statistics.mean);
  if (!running_var.defined()) return;
  const at::Tensor unbiased = statistics.count / (statistics.count - 1).clamp_min_(1);
  update(running_var, statistics.variance * unbiased);
}

at::Tensor normalize(const at::Tensor& input, const Statistics& statistics,
                     const at::Tensor& weight, const at::Tensor& bias, double eps) {
  if (input.numel() == 0) return at::empty_like(input);
  return std::get<0>(at::native_batch_norm(input, as_parameter(weight, input),
                                           as_parameter(bias, input), statistics.mean,
                                           statistics.variance, /*training=*/false, 0.0, eps));
}

BackwardSums backward_sums(const at::Tensor& grad, const at::Tensor& input,
                           const Statistics& statistics, double eps) {
  if (input.numel() == 0)
    return {.weight = at::zeros_like(statistics.mean), .bias = at::zeros_like(statistics.mean)};
  // The gradients of a batch norm with given statistics are exactly these sums, in one pass.
  const auto [unused, weight, bias] = at::native_batch_norm_backward(
      grad, input, at::ones({input.size(1)}, parameter_options(input)), statistics.mean,
      statistics.variance, {}, {}, /*train=*/false, eps, {false, true, true});
  return {.weight = weight, .bias = bias};
}

at::Tensor backward_row(const BackwardSums& sums, double tag) {
  const int64_t channels = sums.bias.size(0);
  at::Tensor row = at::empty({1 + 2 * channels}, sums.bias.options().dtype(at::kDouble));
  row[0].fill_(tag);
  row.narrow(0, 1, channels).copy_(sums.bias);
  row.narrow(0, 1 + channels, channels).copy_(sums.weight);
  return row;
}

at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                          const Statistics& statistics, const at::Tensor& rows, double eps) {
  if (input.numel() == 0) return at::zeros_like(input);
  const int64_t channels = input.size(1);
  const at::Tensor means = rows.narrow(1, 1, 2 * channels).sum(0).div_(statistics.count);
  const at::Tensor invstd = (statistics.variance.to(at::kDouble) + eps).rsqrt_();
  const at::Tensor scale = weight.defined() ? invstd * weight.to(at::kDouble) : invstd;
  const at::Tensor slope = -scale * invstd * means.narrow(0, channels, channels);
  const at::Tensor shift = -scale * means.narrow(0, 0, channels);
  const std::array<at::Tensor, 4> factors{as_parameter(scale, input), as_parameter(slope, input),
                                          as_parameter(shift, input), statistics.mean};

  const bool wide = input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble;
  const at::MemoryFormat format = input.suggest_memory_format();
  if (input.is_cpu() && wide && input.is_contiguous(format)) {
    const at::Tensor dy = grad.contiguous(format);
    const at::Tensor result = at::empty_like(input);
    const int64_t inner =
        format == at::MemoryFormat::Contiguous ? input.numel() / (input.size(0) * channels) : 1;
    AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "sync_batch_norm", [&] {
      input_gradient_pass<scalar_t>(dy, input, result, factors, inner);
    });
    return result;
  }
  const auto type = parameter_options(input).dtype().toScalarType();
  return (input.to(type) - per_channel(factors[3], input))
      .mul_(per_channel(factors[1], input))
      .add_(per_channel(factors[2], input))
      .addcmul_(grad.to(type), per_channel(factors[0], input))
      .to(input.scalar_type());
}

}  // namespace lockstep::inline v0::sync_batch_norm
