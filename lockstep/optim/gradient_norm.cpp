#include "lockstep/optim/gradient_norm.h"

#include <ATen/ops/_foreach_norm.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/core/errors.h"

namespace lockstep::optim {
namespace {

// Sums of this many elements are added up one after another; enough for the lanes not to matter,
// few enough for rounding errors to stay small whatever the tensor's size.
constexpr int64_t kChunk = 1 << 14;
constexpr int64_t kLanes = 16;

// Squares of float and the 16-bit types are exact in double, so that a compiler may fuse multiply
// and add, or not: the bits are the same.
template <typename T>
double squares_of_chunk(const T* x, int64_t count) {
  std::array<double, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(static_cast<float>(x[i + lane]));
      sums[static_cast<size_t>(lane)] += value * value;
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    const auto value = static_cast<double>(static_cast<float>(x[i]));
    sums[static_cast<size_t>(lane)] += value * value;
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane)
      sums[static_cast<size_t>(lane)] += sums[static_cast<size_t>(lane + half)];
  }
  return sums[0];
}

template <>
double squares_of_chunk<double>(const double* x, int64_t count) {
  std::array<double, kLanes> sums{};
  for (int64_t i = 0; i < count; ++i) sums[static_cast<size_t>(i % kLanes)] += x[i] * x[i];
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane)
      sums[static_cast<size_t>(lane)] += sums[static_cast<size_t>(lane + half)];
  }
  return sums[0];
}

template <typename T>
double squares_of(const at::Tensor& tensor) {
  const T* x = tensor.const_data_ptr<T>();
  double sum = 0;
  for (int64_t at = 0; at < tensor.numel(); at += kChunk)
    sum += squares_of_chunk(x + at, std::min(kChunk, tensor.numel() - at));
  return sum;
}

double squares_on_device(const at::Tensor& tensor) {
  const auto norms = at::_foreach_norm({tensor.detach()}, 2, at::kDouble);
  const double norm = norms.front().item<double>();
  return norm * norm;
}

double squares_of_tensor(const at::Tensor& given) {
  if (given.layout() != at::kStrided || !at::isFloatingType(given.scalar_type())) {
    throw InvalidArgument(
        "sum_of_squares: takes dense floating-point tensors; this one is sparse or of another "
        "dtype");
  }
  if (!given.is_cpu()) return squares_on_device(given);
  const at::Tensor tensor = given.is_non_overlapping_and_dense() ? given : given.contiguous();
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return squares_of<float>(tensor);
    case at::kDouble:
      return squares_of<double>(tensor);
    case at::kBFloat16:
      return squares_of<at::BFloat16>(tensor);
    case at::kHalf:
      return squares_of<at::Half>(tensor);
    default:
      return squares_of<float>(tensor.to(at::kFloat));
  }
}

}  // namespace

double sum_of_squares(at::TensorList tensors) {
  double sum = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) sum += squares_of_tensor(tensor);
  }
  return sum;
}

double global_norm(at::TensorList tensors) {
  return std::sqrt(sum_of_squares(tensors));
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) result.push_back(parameter.grad());
  }
  return result;
}

}  // namespace lockstep::optim
