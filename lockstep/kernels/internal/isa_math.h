// Functions of sixteen floats, random words.
#pragma once

#include "lockstep/kernels/internal/isa_vector.h"
#include "lockstep/kernels/kernels.h"

namespace lockstep::inline v0::kernels::LOCKSTEP_ISA {
namespace {

// Computes exp(x) with a relative error below 1e-7 for x <= 88, and 0 below -87.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, the product n ln 2 in two parts (Cody and Waite), and exp(r)
// = 1 + r + r^2 P(r), where P has degree 4 and was fitted for the least relative error.
LOCKSTEP_INLINE Floats exponential(Floats x) {
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const Floats shifted = fused(x, all(1.44269504f), magic);
  const Floats n = shifted - magic;
  const Floats r = fused(n, all(2.12194440e-4f), fused(n, all(-0.693359375f), x));
  Floats p = all(0x1.6a2434p-10f);
  p = fused(p, r, all(0x1.1239e2p-7f));
  p = fused(p, r, all(0x1.5558f2p-5f));
  p = fused(p, r, all(0x1.555492p-3f));
  p = fused(p, r, all(0x1.fffffcp-2f));
  p = fused(p * r, r, r) + all(1.0f);
  // The low bits of `shifted` are n, the exponent of 2^n.
  const Floats power = as_floats((bits(shifted) + all_words(127)) << 23);
  return if_less(x, all(-87.0f), all(0.0f), p * power);
}

// The two parts of GELU: the normal distribution's cumulative function and density.
struct Normal {
  Floats below;
  Floats density;
};

// The complementary error function of |x| / sqrt 2 by Abramowitz and Stegun 7.1.26 (Hastings, 1955;
// error 1.5e-7), which needs the same exponential as the density.
LOCKSTEP_INLINE Normal normal(Floats x) {
  const Floats size = magnitude(x);
  const Floats e = exponential(all(-0.5f) * x * x);
  const Floats t = all(1.0f) / fused(all(0.23164189f), size, all(1.0f));  // 0.3275911 / sqrt 2
  Floats p = all(0.5307027145f);  // half of the published coefficients
  p = fused(p, t, all(-0.7265760135f));
  p = fused(p, t, all(0.7107068705f));
  p = fused(p, t, all(-0.142248368f));
  p = fused(p, t, all(0.127414796f));
  const Floats tail = p * t * e;
  return {if_less(x, all(0.0f), tail, all(1.0f) - tail), all(0.39894228f) * e};
}

LOCKSTEP_INLINE Floats hyperbolic_tangent(Floats x) {
  const Floats size = magnitude(x), bound = all(20.0f);  // beyond it is 1 in float32
  const Floats e = exponential(all(-2.0f) * if_less(bound, size, bound, size));
  const Floats t = (all(1.0f) - e) / (all(1.0f) + e);
  return if_less(x, all(0.0f), all(0.0f) - t, t);
}

// ---- random words: random_word.h says what this computes ----

struct RowKey {
  Words first, second;
};

LOCKSTEP_INLINE RowKey row_key(uint64_t seed, int64_t row) {
  uint64_t key = seed + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  key ^= key >> 31;
  return {all_words(static_cast<uint32_t>(key)), all_words(static_cast<uint32_t>(key >> 32))};
}

constexpr uint32_t kLaneNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The sixteen words from `number`.
LOCKSTEP_INLINE Words random_words(RowKey row, int64_t number) {
  Words x = load_words(kLaneNumbers) + all_words(static_cast<uint32_t>(number)) + row.first;
  x = (x ^ (x >> 17)) * all_words(0xed5ad4bb);
  x = x ^ row.second;
  x = (x ^ (x >> 11)) * all_words(0xac4c1b51);
  x = (x ^ (x >> 15)) * all_words(0x31848bab);
  return x ^ (x >> 14);
}

struct Pair {
  Floats first, second;
};

// ---- dropout: dropout.h says what this computes ----

// Multiplies the kept elements by the scale, and the others by 0.
template <bool kDrops>
LOCKSTEP_INLINE Pair drop(Pair x, const Dropout& dropout, RowKey row, int64_t column) {
  if constexpr (!kDrops) return x;
  const Words random = random_words(row, column / 2), threshold = all_words(dropout.threshold);
  const Floats scale = all(dropout.scale), zero = all(0.0f);
  return {if_below(random & all_words(0xffff), threshold, zero, x.first * scale),
          if_below(random >> 16, threshold, zero, x.second * scale)};
}

}  // namespace
}  // namespace lockstep::inline v0::kernels::LOCKSTEP_ISA
