// Normally distributed numbers, as normal.h defines them.
#pragma once

#include "lockstep/kernels/internal/isa_math.h"

namespace lockstep::inline v0::kernels::LOCKSTEP_ISA {
namespace {

// Computes the natural logarithm of x in [2^-25, 1] with an error below 2e-7.
//
// x = 2^e m with m from sqrt(1/2) to sqrt 2, and log m = 2 artanh s with s = (m - 1) / (m + 1).
LOCKSTEP_INLINE Floats logarithm(Floats x) {
  constexpr uint32_t kRootHalf = 0x3f3504f3;  // the bits of sqrt(1/2)
  const Words above = bits(x) + all_words(0x3f800000 - kRootHalf);
  const Words e = above >> 23;  // 127 too large
  const Floats m = as_floats((above & all_words(0x7fffff)) + all_words(kRootHalf));
  const Floats s = (m - all(1.0f)) / (m + all(1.0f)), square = s * s;
  Floats p = all(2.0f / 9);
  p = fused(p, square, all(2.0f / 7));
  p = fused(p, square, all(2.0f / 5));
  p = fused(p, square, all(2.0f / 3));
  p = fused(p * square, s, s + s);
  const Floats exponent = numbers_of(e) - all(127.0f);
  return fused(exponent, all(0.693359375f), fused(exponent, all(-2.12194440e-4f), p));
}

// Taylor's series for an angle from 0 to pi / 4: errors of 3e-8.
LOCKSTEP_INLINE Pair cosine_and_sine(Floats x) {
  const Floats square = x * x;
  Floats c = all(1.0f / 40320);
  c = fused(c, square, all(-1.0f / 720));
  c = fused(c, square, all(1.0f / 24));
  c = fused(c, square, all(-0.5f));
  Floats s = all(1.0f / 362880);
  s = fused(s, square, all(-1.0f / 5040));
  s = fused(s, square, all(1.0f / 120));
  s = fused(s, square, all(-1.0f / 6));
  return {fused(c, square, all(1.0f)), fused(s * square, x, x)};
}

LOCKSTEP_INLINE Pair normal_pair(RowKey row, int64_t number) {
  const Words length = random_words(row, number), turn = random_words(row, number + kLanes);
  const Floats uniform = fused(numbers_of(length >> 8), all(0x1p-24f), all(0x1p-25f));
  const Floats radius = square_root(all(-2.0f) * logarithm(uniform));
  const Pair point =
      cosine_and_sine(numbers_of(turn & all_words(0xffffff)) * all(0.78539816f * 0x1p-24f));
  const Words swapped = turn & all_words(1U << 29), one = all_words(1), sign = all_words(1U << 31);
  const Floats x = if_below(swapped, one, point.first, point.second);
  const Floats y = if_below(swapped, one, point.second, point.first);
  return {as_floats(bits(radius * x) ^ (turn & sign)),
          as_floats(bits(radius * y) ^ ((turn << 1) & sign))};
}

void fill_normal(uint64_t seed, float deviation, float* to, int64_t begin, int64_t end) {
  const Floats scale = all(deviation);
  for (int64_t row = begin; row < end; row += kNormalRow) {
    const RowKey key = row_key(seed, row / kNormalRow);
    const int64_t width = end - row < kNormalRow ? end - row : kNormalRow;
    for_columns(width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      const Pair drawn = normal_pair(key, c);
      store(to + row + c, scale * drawn.first, n);
      if (m > 0) store(to + row + c + kLanes, scale * drawn.second, m);
    });
  }
}

}  // namespace
}  // namespace lockstep::inline v0::kernels::LOCKSTEP_ISA
