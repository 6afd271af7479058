// Cross entropy of rows of logits. See CrossEntropy in kernels.h.
#pragma once

#include "lockstep/kernels/internal/isa_math.h"

namespace lockstep::inline v0::kernels::LOCKSTEP_ISA {
namespace {

// The sums in float32 of this many columns are added up in double, because a vocabulary is long.
constexpr int64_t kSummed = 2048;

LOCKSTEP_INLINE float most_of(const float* row, int64_t width) {
  Floats first = all(-__builtin_inff()), second = first;
  for_columns(width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
    first = larger(first, load(row + c, n, -__builtin_inff()));
    if (m > 0) second = larger(second, load(row + c + kLanes, m, -__builtin_inff()));
  });
  return most(larger(first, second));
}

template <bool kKeeps>
LOCKSTEP_INLINE double exponential_sum(float* row, int64_t width, float largest) {
  double total = 0;
  const auto part = [&](int64_t c, int64_t n) LOCKSTEP_INLINED {
    const Floats e = exponential(load(row + c, n, -__builtin_inff()) - all(largest));
    if constexpr (kKeeps) store(row + c, e, n);
    return e;  // 0 beyond the row
  };
  for (int64_t begin = 0; begin < width; begin += kSummed) {
    Floats first = all(0.0f), second = all(0.0f);
    for_columns(width - begin < kSummed ? width - begin : kSummed,
                [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
                  first = first + part(begin + c, n);
                  if (m > 0) second = second + part(begin + c + kLanes, m);
                });
    total += static_cast<double>(sum(first + second));
  }
  return total;
}

void log_sums(const CrossEntropy& of, const LogSums& out, bool keeps, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    float* const row = of.logits + r * of.pitch;
    const int64_t target = of.targets[r];
    const float largest = most_of(row, of.width);
    out.most[r] = largest;
    out.target[r] = target >= 0 && target < of.width ? row[target] : 0;
    out.sum[r] = static_cast<float>(keeps ? exponential_sum<true>(row, of.width, largest)
                                          : exponential_sum<false>(row, of.width, largest));
  }
}

void cross_entropy_gradient(const CrossEntropy& of, const float* factors, const float* scales,
                            int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    float* const row = of.logits + r * of.pitch;
    const int64_t target = of.targets[r];
    if (scales[r] == 0) {  // also where the row is not finite
      __builtin_memset(row, 0, static_cast<size_t>(of.width) * sizeof(float));
      continue;
    }
    const Floats factor = all(factors[r]);
    for_columns(of.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      store(row + c, load(row + c, n) * factor, n);
      if (m > 0) store(row + c + kLanes, load(row + c + kLanes, m) * factor, m);
    });
    if (target >= 0 && target < of.width) row[target] -= scales[r];
  }
}

}  // namespace
}  // namespace lockstep::inline v0::kernels::LOCKSTEP_ISA
