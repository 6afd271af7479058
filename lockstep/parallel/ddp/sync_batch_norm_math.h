// The arithmetic of SyncBatchNorm, without communication and autograd, for CPU and CUDA tensors. An
// input is [rows, channels, ...]; "per channel" is over all other dimensions.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline v0::sync_batch_norm {

// One rank's part of a forward: [count, tag, mean of each channel, sum of squared deviations from
// it], float64. The tag identifies layer and direction (0: none; see sync_batch_norm.h).
at::Tensor forward_row(const at::Tensor& input, double tag);

// Combines all ranks' rows as if they were one batch. It combines means and deviations instead of
// sums of squares, so nothing cancels where a mean is large (Chan, Golub, LeVeque, 1979: "Updating
// formulae and a pairwise algorithm for computing sample variances"). Rows of count 0 add nothing.
struct Statistics {
  at::Tensor mean;      // [channels], of parameter_type(input)
  at::Tensor variance;  // [channels], biased, of the same type
  at::Tensor count;     // a float64 scalar: values per channel in the whole batch
};
Statistics combine_forward(const at::Tensor& rows, const at::Tensor& input);

// running = (1 - momentum) * running + momentum * batch, with the unbiased variance. Either may be
// undefined. Without any rows, nothing changes.
void update_running(const Statistics& statistics, double momentum, const at::Tensor& running_mean,
                    const at::Tensor& running_var);

// (input - mean) / sqrt(variance + eps) * weight + bias, in the input's type.
at::Tensor normalize(const at::Tensor& input, const Statistics& statistics,
                     const at::Tensor& weight, const at::Tensor& bias, double eps);

// This rank's contribution in a backward to the gradients of weight and bias, which are local sums,
// and to all ranks' gradients of the input.
struct BackwardSums {
  at::Tensor weight;  // [channels]
  at::Tensor bias;
};
BackwardSums backward_sums(const at::Tensor& grad, const at::Tensor& input,
                           const Statistics& statistics, double eps);
// [tag, sum of the output's gradients for each channel, sum of these times (input - mean) *
// invstd], float64.
at::Tensor backward_row(const BackwardSums& sums, double tag);
at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                          const Statistics& statistics, const at::Tensor& rows, double eps);

}  // namespace lockstep::inline v0::sync_batch_norm
