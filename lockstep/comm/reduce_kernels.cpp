#include "lockstep/comm/reduce_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// Blocks small enough that the accumulator stays in the first-level cache.
constexpr int64_t kBlock = 2048;

template <typename T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<at::Half> {
  using type = float;
};
template <>
struct Accumulator<at::BFloat16> {
  using type = float;
};

// Integers are added and multiplied as unsigned ones, where wrapping around is defined; int widens
// so that uint8 and uint16 are not promoted to a signed int that could overflow.
template <typename T>
T wrapping(uint64_t value) {
  return static_cast<T>(value);
}

template <ReduceOp kOp, typename T>
T combine(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    if constexpr (kOp == ReduceOp::kSum || kOp == ReduceOp::kMax || kOp == ReduceOp::kBitOr)
      return a || b;
    else if constexpr (kOp == ReduceOp::kBitXor)
      return a != b;
    else
      return a && b;
  } else if constexpr (kOp == ReduceOp::kSum || kOp == ReduceOp::kAvg) {
    if constexpr (std::is_integral_v<T>)
      return wrapping<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    else
      return a + b;
  } else if constexpr (kOp == ReduceOp::kProduct) {
    if constexpr (std::is_integral_v<T>)
      return wrapping<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    else
      return a * b;
  } else if constexpr (kOp == ReduceOp::kMin) {
    if constexpr (std::is_floating_point_v<T>)
      return a < b || std::isnan(a) ? a : b;
    else
      return std::min(a, b);
  } else if constexpr (kOp == ReduceOp::kMax) {
    if constexpr (std::is_floating_point_v<T>)
      return a > b || std::isnan(a) ? a : b;
    else
      return std::max(a, b);
  } else if constexpr (kOp == ReduceOp::kBitAnd) {
    return static_cast<T>(a & b);
  } else if constexpr (kOp == ReduceOp::kBitOr) {
    return static_cast<T>(a | b);
  } else {
    return static_cast<T>(a ^ b);
  }
}

template <typename T, ReduceOp kOp>
void reduce_typed(std::byte* output, std::span<const std::byte* const> inputs, int64_t count) {
  using A = typename Accumulator<T>::type;
  auto* out = reinterpret_cast<T*>(output);
  std::array<A, kBlock> sum;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<A>(first[i]);
    for (size_t k = 1; k < inputs.size(); ++k) {
      const T* next = reinterpret_cast<const T*>(inputs[k]) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] = combine<kOp, A>(sum[i], static_cast<A>(next[i]));
    }
    if constexpr (kOp == ReduceOp::kAvg) {
      const A ranks = static_cast<A>(inputs.size());
      for (int64_t i = 0; i < n; ++i) sum[i] = sum[i] / ranks;
    }
    for (int64_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(sum[i]);
  }
}

template <typename T>
void reduce_dtype(std::byte* output, std::span<const std::byte* const> inputs, int64_t count,
                  ReduceOp op) {
  constexpr bool kIntegral = std::is_integral_v<T>;
  switch (op) {
    case ReduceOp::kSum:
      return reduce_typed<T, ReduceOp::kSum>(output, inputs, count);
    case ReduceOp::kProduct:
      return reduce_typed<T, ReduceOp::kProduct>(output, inputs, count);
    case ReduceOp::kMin:
      return reduce_typed<T, ReduceOp::kMin>(output, inputs, count);
    case ReduceOp::kMax:
      return reduce_typed<T, ReduceOp::kMax>(output, inputs, count);
    case ReduceOp::kAvg:
      if constexpr (!kIntegral) return reduce_typed<T, ReduceOp::kAvg>(output, inputs, count);
      break;
    case ReduceOp::kBitAnd:
      if constexpr (kIntegral) return reduce_typed<T, ReduceOp::kBitAnd>(output, inputs, count);
      break;
    case ReduceOp::kBitOr:
      if constexpr (kIntegral) return reduce_typed<T, ReduceOp::kBitOr>(output, inputs, count);
      break;
    case ReduceOp::kBitXor:
      if constexpr (kIntegral) return reduce_typed<T, ReduceOp::kBitXor>(output, inputs, count);
      break;
  }
  LOCKSTEP_CHECK(false, "the reduction is valid for the dtype");
}

}  // namespace

void reduce_buffers(std::byte* output, std::span<const std::byte* const> inputs, int64_t count,
                    at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kFloat:
      return reduce_dtype<float>(output, inputs, count, op);
    case at::kDouble:
      return reduce_dtype<double>(output, inputs, count, op);
    case at::kHalf:
      return reduce_dtype<at::Half>(output, inputs, count, op);
    case at::kBFloat16:
      return reduce_dtype<at::BFloat16>(output, inputs, count, op);
    case at::kChar:
      return reduce_dtype<int8_t>(output, inputs, count, op);
    case at::kShort:
      return reduce_dtype<int16_t>(output, inputs, count, op);
    case at::kInt:
      return reduce_dtype<int32_t>(output, inputs, count, op);
    case at::kLong:
      return reduce_dtype<int64_t>(output, inputs, count, op);
    case at::kByte:
      return reduce_dtype<uint8_t>(output, inputs, count, op);
    case at::kBool:
      return reduce_dtype<bool>(output, inputs, count, op);
    default:
      LOCKSTEP_CHECK(false, "the dtype is one that collectives carry");
  }
}

}  // namespace lockstep
