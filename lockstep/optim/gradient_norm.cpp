#include "lockstep/optim/gradient_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/instruction_set.h"

namespace lockstep::inline v0::optim {
namespace {

// Partial sums of this many elements are added up sequentially: few enough to keep rounding errors
// small, whatever the tensor's size.
constexpr int64_t kChunk = 1 << 14;
// A chunk is read in several places at once, which keeps more cache lines in transit than the
// processor's prefetcher would: a gradient in memory is summed at memory's speed.
constexpr int64_t kStreams = 4;
constexpr int64_t kLanes = 8;
constexpr int64_t kAhead = 256;  // in elements

double widen(double x) {
  return x;
}
template <typename T>
double widen(T x) {
  return static_cast<double>(static_cast<float>(x));
}

// The order of the sum depends only on `count`. Squares of float and of 16-bit types are exact in
// double, so the bits do not depend on whether a compiler fuses multiply and add.
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

// The same for newer processors, with the same bits, because AVX2 alone has no fused multiply-add.
#if defined(__x86_64__)
template <typename T>
[[gnu::target("avx2")]] double avx2_chunk(const T* x, int64_t count) {
  return squares_of_chunk(x, count);
}
#endif

template <typename T>
double (*chunk_function())(const T*, int64_t) {
#if defined(__x86_64__)
  static const bool kWide = instruction_set_used(process_env()) >= InstructionSet::kAvx2;
  if (kWide) return avx2_chunk<T>;
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

void check_tensor(const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided && at::isFloatingType(tensor.scalar_type())) return;
  throw InvalidArgument(
      "sum_of_squares: takes dense floating-point tensors; this one is sparse or of another "
      "dtype");
}

// For tensors of one device.
at::Tensor norm_on_device(const std::vector<at::Tensor>& tensors) {
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(tensors, 2, at::kDouble)));
}

double squares_of_tensor(const at::Tensor& given) {
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

struct ByDevice {
  double squares = 0;  // of the gradients on the CPU
  // By device, in order of each one's first gradient.
  std::vector<std::vector<at::Tensor>> elsewhere;
};

ByDevice by_device(at::TensorList tensors) {
  const at::NoGradGuard no_grad;
  ByDevice result;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    check_tensor(tensor);
    if (tensor.is_cpu()) {
      result.squares += squares_of_tensor(tensor);
      continue;
    }
    auto& all = result.elsewhere;
    const auto same = std::find_if(all.begin(), all.end(), [&](const auto& list) {
      return list.front().device() == tensor.device();
    });
    if (same == all.end())
      all.push_back({tensor.detach()});
    else
      same->push_back(tensor.detach());
  }
  return result;
}

}  // namespace

double sum_of_squares(at::TensorList tensors) {
  const ByDevice all = by_device(tensors);
  double sum = all.squares;
  for (const std::vector<at::Tensor>& list : all.elsewhere) {
    const double norm = norm_on_device(list).item<double>();
    sum += norm * norm;
  }
  return sum;
}

at::Tensor sum_of_squares_on(at::Device device, at::TensorList tensors) {
  const ByDevice all = by_device(tensors);
  at::Tensor sum = at::full({1}, all.squares, at::TensorOptions(at::kDouble).device(device));
  for (const std::vector<at::Tensor>& list : all.elsewhere)
    // A copy to the host waits, because the sum is computed there.
    sum.add_(norm_on_device(list).square().to(device, /*non_blocking=*/!device.is_cpu()));
  return sum;
}

double global_norm(at::TensorList tensors) {
  return std::sqrt(sum_of_squares(tensors));
}

at::Tensor global_norm_tensor(at::TensorList tensors) {
  const ByDevice all = by_device(tensors);
  if (all.elsewhere.empty()) return at::scalar_tensor(std::sqrt(all.squares), at::kDouble);
  at::Tensor norm = norm_on_device(all.elsewhere.front());
  if (all.elsewhere.size() == 1 && all.squares == 0) return norm;
  at::Tensor squares = norm.square() + all.squares;
  for (size_t i = 1; i < all.elsewhere.size(); ++i)
    squares += norm_on_device(all.elsewhere[i]).square().to(norm.device(), /*non_blocking=*/true);
  return squares.sqrt();
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm) {
  check_max_norm("clip_grad_norm_", max_norm);
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  at::Tensor norm = global_norm_tensor(gradients);
  const at::Tensor coefficient = (max_norm / (norm + kNormEpsilon)).clamp_max(1);
  // One call per kind.
  std::vector<std::vector<at::Tensor>> kinds;
  for (const at::Tensor& gradient : gradients) {
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const auto& list) {
      return list.front().device() == gradient.device() && list.front().dtype() == gradient.dtype();
    });
    if (same == kinds.end())
      kinds.push_back({gradient});
    else
      same->push_back(gradient);
  }
  for (std::vector<at::Tensor>& kind : kinds)
    at::_foreach_mul_(kind, coefficient.to(kind.front().options(), !kind.front().is_cpu()));
  return norm;
}

void check_max_norm(const std::string& owner, double max_norm) {
  if (!(max_norm > 0))
    throw InvalidArgument(owner + ": max_norm is " + std::to_string(max_norm) +
                          ", it must be above 0");
}

void clip_by_norm(at::TensorList gradients, double norm, double max_norm) {
  const double factor = max_norm / (norm + kNormEpsilon);
  if (factor >= 1 || gradients.empty()) return;
  const at::NoGradGuard no_grad;
  at::_foreach_mul_(gradients, factor);
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) result.push_back(parameter.grad());
  }
  return result;
}

}  // namespace lockstep::inline v0::optim
