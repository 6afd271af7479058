// Dropout, residual and layer norm, forward and backward. See Norm in kernels.h.
#pragma once

#include "lockstep/kernels/internal/isa_layout.h"
#include "lockstep/kernels/internal/isa_math.h"

namespace lockstep::inline v0::kernels::LOCKSTEP_ISA {
namespace {

// Computes dropout(x + bias) + residual, without the operands that are null.
template <typename T, bool kDrops>
LOCKSTEP_INLINE Pair before_norm(const Norm& norm, int64_t row, RowKey mask, int64_t c, int64_t n,
                                 int64_t m) {
  Pair z{all(0.0f), all(0.0f)};
  if (norm.x != nullptr) {
    const T* const x = static_cast<const T*>(norm.x) + row * norm.width + c;
    z = {load(x, n), load(x + kLanes, m)};
  }
  if (norm.bias != nullptr) {
    z.first = z.first + load(norm.bias + c, n);
    z.second = z.second + load(norm.bias + c + kLanes, m);
  }
  z = drop<kDrops>(z, norm.before, mask, c);
  if (norm.residual != nullptr) {
    const float* const residual = norm.residual + row * norm.width + c;
    z.first = z.first + load(residual, n);
    z.second = z.second + load(residual + kLanes, m);
  }
  return z;
}

template <typename T, bool kBefore, bool kAfter>
void norm_rows(const Norm& norm, const NormOutputs& out, int64_t begin, int64_t end) {
  const auto width = static_cast<float>(norm.width);
  for (int64_t row = begin; row < end; ++row) {
    float* const y = out.y + row * norm.width;
    RowKey mask{};
    if constexpr (kBefore) mask = row_key(norm.before.seed, row);
    Floats first = all(0.0f), second = all(0.0f);
    for_columns(norm.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      const Pair z = before_norm<T, kBefore>(norm, row, mask, c, n, m);
      store(y + c, z.first, n);
      store(y + c + kLanes, z.second, m);
      first = first + z.first;  // 0 beyond the row
      second = second + z.second;
    });
    const float mean = sum(first + second) / width;
    const Floats means = all(mean);
    first = second = all(0.0f);
    for_columns(norm.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      const Floats a = load(y + c, n, mean) - means, b = load(y + c + kLanes, m, mean) - means;
      first = first + a * a;
      second = second + b * b;
    });
    const float rstd = 1.0f / __builtin_sqrtf(sum(first + second) / width + norm.epsilon);
    const Floats rstds = all(rstd);
    if constexpr (kAfter) mask = row_key(norm.after.seed, row);
    for_columns(norm.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      Pair v{(load(y + c, n) - means) * rstds, (load(y + c + kLanes, m) - means) * rstds};
      v.first = v.first * load(norm.gamma + c, n) + load(norm.beta + c, n);
      v.second = v.second * load(norm.gamma + c + kLanes, m) + load(norm.beta + c + kLanes, m);
      v = drop<kAfter>(v, norm.after, mask, c);
      store(y + c, v.first, n);
      store(y + c + kLanes, v.second, m);
      if (out.rounded != nullptr) {
        Bf16* const narrow = reinterpret_cast<Bf16*>(out.rounded) + row * norm.width + c;
        store(narrow, v.first, n);
        store(narrow + kLanes, v.second, m);
      }
    });
    out.mean[row] = mean;
    out.rstd[row] = rstd;
  }
}

// The gradient of y before the last dropout.
template <typename T, bool kAfter>
LOCKSTEP_INLINE Pair gradient_at(const Norm& norm, const NormGradients& g, int64_t row, RowKey mask,
                                 int64_t c, int64_t n, int64_t m) {
  Pair dy{all(0.0f), all(0.0f)};
  if (g.dy != nullptr) {
    const float* const from = g.dy + row * norm.width + c;
    dy = {load(from, n), load(from + kLanes, m)};
  }
  if (g.dy_typed != nullptr) {
    const T* const from = static_cast<const T*>(g.dy_typed) + row * norm.width + c;
    dy.first = dy.first + load(from, n);
    dy.second = dy.second + load(from + kLanes, m);
  }
  return drop<kAfter>(dy, norm.after, mask, c);
}

LOCKSTEP_INLINE void add_to(float* to, Floats v, int64_t n) {
  store(to, load(to, n) + v, n);
}

// With h = norm(z) and k = dy gamma: dz = rstd (k - mean(k) - h mean(k h)), means over the row.
template <typename T, bool kBefore, bool kAfter>
void norm_row_backward(const Norm& norm, const NormGradients& g, int64_t row) {
  float* const dz = g.dz + row * norm.width;
  float* const dgamma = g.sums;
  float* const dbeta = dgamma + norm.width;
  float* const dbias = dbeta + norm.width;
  float* const normed = dbias + norm.width;
  const Floats mean = all(g.mean[row]), rstd = all(g.rstd[row]);
  RowKey before{}, after{};
  if constexpr (kBefore) before = row_key(norm.before.seed, row);
  if constexpr (kAfter) after = row_key(norm.after.seed, row);
  Floats k_first = all(0.0f), k_second = k_first, kh_first = k_first, kh_second = k_first;
  for_columns(norm.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
    const Pair z = before_norm<T, kBefore>(norm, row, before, c, n, m);
    const Pair dy = gradient_at<T, kAfter>(norm, g, row, after, c, n, m);
    const Floats h_first = (z.first - mean) * rstd, h_second = (z.second - mean) * rstd;
    // Beyond the row dy and gamma are 0.
    const Floats k1 = dy.first * load(norm.gamma + c, n);
    const Floats k2 = dy.second * load(norm.gamma + c + kLanes, m);
    add_to(dgamma + c, dy.first * h_first, n);
    add_to(dgamma + c + kLanes, dy.second * h_second, m);
    add_to(dbeta + c, dy.first, n);
    add_to(dbeta + c + kLanes, dy.second, m);
    store(normed + c, h_first, n);
    store(normed + c + kLanes, h_second, m);
    store(dz + c, k1, n);
    store(dz + c + kLanes, k2, m);
    k_first = k_first + k1;
    k_second = k_second + k2;
    kh_first = kh_first + k1 * h_first;
    kh_second = kh_second + k2 * h_second;
  });
  const auto width = static_cast<float>(norm.width);
  const Floats k = all(sum(k_first + k_second) / width),
               kh = all(sum(kh_first + kh_second) / width);
  T* const dx = static_cast<T*>(g.dx) + (g.dx == nullptr ? 0 : row * norm.width);
  for_columns(norm.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
    Pair v{rstd * (load(dz + c, n) - k - load(normed + c, n) * kh),
           rstd * (load(dz + c + kLanes, m) - k - load(normed + c + kLanes, m) * kh)};
    store(dz + c, v.first, n);
    store(dz + c + kLanes, v.second, m);
    if (g.dx == nullptr) return;
    v = drop<kBefore>(v, norm.before, before, c);
    store(dx + c, v.first, n);
    store(dx + c + kLanes, v.second, m);
    add_to(dbias + c, v.first, n);
    add_to(dbias + c + kLanes, v.second, m);
  });
}

template <typename T, bool kBefore, bool kAfter>
void norm_rows_backward(const Norm& norm, const NormGradients& g, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row += kTransposeRows) {
    const int64_t stop = row + kTransposeRows < end ? row + kTransposeRows : end;
    for (int64_t r = row; r < stop; ++r) norm_row_backward<T, kBefore, kAfter>(norm, g, r);
    if (g.dx_columns != nullptr)
      transpose_shorts({static_cast<const uint16_t*>(g.dx) + row * norm.width, stop - row,
                        norm.width, norm.width},
                       g.dx_columns + row, g.columns_pitch);
  }
}

template <typename T>
void norm_typed(const Norm& norm, const NormOutputs& out, int64_t begin, int64_t end) {
  const bool before = norm.before.threshold > 0, after = norm.after.threshold > 0;
  if (before && after) return norm_rows<T, true, true>(norm, out, begin, end);
  if (before) return norm_rows<T, true, false>(norm, out, begin, end);
  if (after) return norm_rows<T, false, true>(norm, out, begin, end);
  norm_rows<T, false, false>(norm, out, begin, end);
}

template <typename T>
void norm_backward_typed(const Norm& norm, const NormGradients& g, int64_t begin, int64_t end) {
  const bool before = norm.before.threshold > 0, after = norm.after.threshold > 0;
  if (before && after) return norm_rows_backward<T, true, true>(norm, g, begin, end);
  if (before) return norm_rows_backward<T, true, false>(norm, g, begin, end);
  if (after) return norm_rows_backward<T, false, true>(norm, g, begin, end);
  norm_rows_backward<T, false, false>(norm, g, begin, end);
}

void norm_forward(const Norm& norm, const NormOutputs& out, int64_t begin, int64_t end) {
  if (norm.type == Type::kBFloat16) return norm_typed<Bf16>(norm, out, begin, end);
  norm_typed<float>(norm, out, begin, end);
}

void norm_backward(const Norm& norm, const NormGradients& g, int64_t begin, int64_t end) {
  if (norm.type == Type::kBFloat16) return norm_backward_typed<Bf16>(norm, g, begin, end);
  norm_backward_typed<float>(norm, g, begin, end);
}

}  // namespace
}  // namespace lockstep::inline v0::kernels::LOCKSTEP_ISA
