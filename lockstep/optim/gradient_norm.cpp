#include "lockstep/optim/gradient_norm.h"

#include <ATen/ops/_foreach_norm.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/core/errors.h"
#include "lockstep/core/instruction_set.h"

namespace lockstep::optim {
namespace {

// Sums of this many elements are added up one after another: few enough for rounding errors to stay
// small whatever the tensor's size.
constexpr int64_t kChunk = 1 << 14;
// A chunk is read in several places at once, which keeps more of memory's lines under way than the
// processor's prefetcher would: a gradient that lies in memory is summed at memory's speed.
constexpr int64_t kStreams = 4;
constexpr int64_t kLanes = 8;
constexpr int64_t kAhead = 256;  // elements

double widen(double x) {
  return x;
}
template <typename T>
double widen(T x) {
  return static_cast<double>(static_cast<float>(x));
}

// The order of the sum depends on `count` alone. Squares of float and the 16-bit types are exact in
// double, so that a compiler may fuse multiply and add, or not: the bits are the same.
template <typename T>
[[gnu::always_inline]] inline double squares_of_chunk(const T* x, int64_t count) {
  std::array<double, kStreams * kLanes> sums{};
  const int64_t stretch = count / (kStreams * kLanes) * kLanes;
  for (int64_t i = 0; i < stretch; i += kLanes) {
    for (int64_t stream = 0; stream < kStreams; ++stream) {
      const T* here = x + stream * stretch + i;
      __builtin_prefetch(here + kAhead);
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const double value = widen(here[lane]);
        sums[static_cast<size_t>(stream * kLanes + lane)] += value * value;
      }
    }
  }
  for (int64_t i = kStreams * stretch; i < count; ++i) {
    const double value = widen(x[i]);
    sums[static_cast<size_t>(i % (kStreams * kLanes))] += value * value;
  }
  for (size_t half = sums.size() / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

template <typename T>
double baseline_chunk(const T* x, int64_t count) {
  return squares_of_chunk(x, count);
}

// The same for newer processors; the same bits, for AVX2 alone has no fused multiply-add.
#if defined(__x86_64__)
template <typename T>
[[gnu::target("avx2")]] double avx2_chunk(const T* x, int64_t count) {
  return squares_of_chunk(x, count);
}
#endif

template <typename T>
double (*chunk_function())(const T*, int64_t) {
#if defined(__x86_64__)
  static const bool kAllowed = instruction_set_limit(process_env()) >= InstructionSet::kAvx2;
  if (kAllowed && __builtin_cpu_supports("avx2")) return avx2_chunk<T>;
#endif
  return baseline_chunk<T>;
}

template <typename T>
double squares_of(const at::Tensor& tensor) {
  const T* x = tensor.const_data_ptr<T>();
  double (*const sum_of)(const T*, int64_t) = chunk_function<T>();
  double sum = 0;
  for (int64_t at = 0; at < tensor.numel(); at += kChunk)
    sum += sum_of(x + at, std::min(kChunk, tensor.numel() - at));
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
