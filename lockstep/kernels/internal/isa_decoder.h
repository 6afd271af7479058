// The work between the products of a decoder's layer: RMS norm, SwiGLU, rotary positions. See
// kernels.h.
#pragma once

#include "lockstep/kernels/internal/isa_math.h"

namespace lockstep::inline v0::kernels::LOCKSTEP_ISA {
namespace {

// ---- RMS norm ----

template <typename T>
LOCKSTEP_INLINE Floats sum_at(const RmsNorm& norm, int64_t row, int64_t c, int64_t n) {
  Floats z = all(0.0f);
  if (norm.x != nullptr) z = load(static_cast<const T*>(norm.x) + row * norm.width + c, n);
  if (norm.residual != nullptr) z = z + load(norm.residual + row * norm.width + c, n);
  return z;
}

template <typename T>
void rms_norm_rows(const RmsNorm& norm, const RmsNormOutputs& out, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    Floats first = all(0.0f), second = all(0.0f);
    for_columns(norm.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      const Floats a = sum_at<T>(norm, row, c, n), b = sum_at<T>(norm, row, c + kLanes, m);
      if (out.z != nullptr) {
        store(out.z + row * norm.width + c, a, n);
        store(out.z + row * norm.width + c + kLanes, b, m);
      }
      first = first + a * a;  // 0 beyond the row
      second = second + b * b;
    });
    const float rrms =
        1.0f / __builtin_sqrtf(sum(first + second) / static_cast<float>(norm.width) + norm.epsilon);
    out.rrms[row] = rrms;
    const Floats scale = all(rrms);
    T* const y = static_cast<T*>(out.y) + row * norm.width;
    const auto part = [&](int64_t c, int64_t n) LOCKSTEP_INLINED {
      const Floats z =
          out.z != nullptr ? load(out.z + row * norm.width + c, n) : sum_at<T>(norm, row, c, n);
      store(y + c, z * scale * load(norm.gamma + c, n), n);
    };
    for_columns(norm.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      part(c, n);
      if (m > 0) part(c + kLanes, m);
    });
  }
}

// With h = z rrms and k = dy gamma: dz = rrms (k - h mean(k h)), means over the row.
template <typename T>
void rms_norm_rows_backward(const RmsNorm& norm, const RmsNormGradients& g, int64_t begin,
                            int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* const z = g.z + row * norm.width;
    const T* const dy = static_cast<const T*>(g.dy) + row * norm.width;
    const Floats rrms = all(g.rrms[row]);
    Floats first = all(0.0f), second = all(0.0f);
    const auto products = [&](int64_t c, int64_t n) LOCKSTEP_INLINED {
      const Floats h = load(z + c, n) * rrms, d = load(dy + c, n);
      store(g.sums + c, load(g.sums + c, n) + d * h, n);
      return d * load(norm.gamma + c, n) * h;  // 0 beyond the row
    };
    for_columns(norm.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      first = first + products(c, n);
      if (m > 0) second = second + products(c + kLanes, m);
    });
    const Floats mean = all(sum(first + second) / static_cast<float>(norm.width));
    float* const dz = g.dz + row * norm.width;
    const float* const too = g.dz_too == nullptr ? nullptr : g.dz_too + row * norm.width;
    T* const dx = static_cast<T*>(g.dx) + (g.dx == nullptr ? 0 : row * norm.width);
    const auto part = [&](int64_t c, int64_t n) LOCKSTEP_INLINED {
      const Floats h = load(z + c, n) * rrms;
      Floats v = rrms * (load(dy + c, n) * load(norm.gamma + c, n) - h * mean);
      if (too != nullptr) v = v + load(too + c, n);
      store(dz + c, v, n);
      if (g.dx != nullptr) store(dx + c, v, n);
    };
    for_columns(norm.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      part(c, n);
      if (m > 0) part(c + kLanes, m);
    });
  }
}

void rms_norm(const RmsNorm& norm, const RmsNormOutputs& out, int64_t begin, int64_t end) {
  if (norm.type == Type::kBFloat16) return rms_norm_rows<Bf16>(norm, out, begin, end);
  rms_norm_rows<float>(norm, out, begin, end);
}
void rms_norm_backward(const RmsNorm& norm, const RmsNormGradients& g, int64_t begin, int64_t end) {
  if (norm.type == Type::kBFloat16) return rms_norm_rows_backward<Bf16>(norm, g, begin, end);
  rms_norm_rows_backward<float>(norm, g, begin, end);
}

// ---- dropout of a matrix's part ----

void kept(const Dropout& dropout, const Area& area, float* to) {
  for (int64_t row = 0; row < area.rows; ++row) {
    const RowKey key = row_key(dropout.seed, area.row + row);
    float* const mask = to + row * area.columns;
    for_columns(area.columns, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      const Pair v = drop<true>(Pair{all(1.0f), all(1.0f)}, dropout, key, area.column + c);
      store(mask + c, v.first, n);
      if (m > 0) store(mask + c + kLanes, v.second, m);
    });
  }
}

// ---- SwiGLU ----

// 1 / (1 + exp(-x)).
LOCKSTEP_INLINE Floats logistic(Floats x) {
  const Floats least = all(-87.0f);  // below it is 0 in float32, and exp(-x) is not
  return all(1.0f) / (all(1.0f) + exponential(all(0.0f) - if_less(x, least, least, x)));
}

template <typename T>
void swiglu_elements(const SwiGlu& s, void* to, int64_t begin, int64_t end) {
  const T* const gate = static_cast<const T*>(s.gate);
  const T* const up = static_cast<const T*>(s.up);
  T* const y = static_cast<T*>(to);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i < kLanes ? end - i : kLanes;
    const Floats g = load(gate + i, n);
    store(y + i, g * logistic(g) * load(up + i, n), n);
  }
}

// silu'(g) = s (1 + g (1 - s)), s = logistic(g).
template <typename T>
void swiglu_elements_backward(const SwiGlu& s, const SwiGluGradients& d, int64_t begin,
                              int64_t end) {
  const T* const gate = static_cast<const T*>(s.gate);
  const T* const up = static_cast<const T*>(s.up);
  const T* const dy = static_cast<const T*>(d.dy);
  T* const dgate = static_cast<T*>(d.dgate);
  T* const dup = static_cast<T*>(d.dup);
  const Floats one = all(1.0f);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i < kLanes ? end - i : kLanes;
    const Floats g = load(gate + i, n), u = load(up + i, n), v = load(dy + i, n);
    const Floats open = logistic(g);
    store(dgate + i, v * u * open * (one + g * (one - open)), n);
    store(dup + i, v * g * open, n);
  }
}

void swiglu(const SwiGlu& s, void* y, int64_t begin, int64_t end) {
  if (s.type == Type::kBFloat16) return swiglu_elements<Bf16>(s, y, begin, end);
  swiglu_elements<float>(s, y, begin, end);
}
void swiglu_backward(const SwiGlu& s, const SwiGluGradients& d, int64_t begin, int64_t end) {
  if (s.type == Type::kBFloat16) return swiglu_elements_backward<Bf16>(s, d, begin, end);
  swiglu_elements_backward<float>(s, d, begin, end);
}

// ---- rotary positions ----

// Rotates one head's row; `turn` is 1 or -1.
template <typename T>
LOCKSTEP_INLINE void turn_row(const T* from, T* to, const float* cosines, const float* sines,
                              int64_t half, float turn) {
  for (int64_t c = 0; c < half; c += kLanes) {
    const int64_t n = half - c < kLanes ? half - c : kLanes;
    const Floats a = load(from + c, n), b = load(from + half + c, n);
    if (cosines == nullptr) {
      store(to + c, a, n);
      store(to + half + c, b, n);
      continue;
    }
    const Floats cosine = load(cosines + c, n), sine = all(turn) * load(sines + c, n);
    store(to + c, a * cosine - b * sine, n);
    store(to + half + c, b * cosine + a * sine, n);
  }
}

template <typename T, bool kBack>
void turn_rows(const Rotary& r, const void* from, void* to, int64_t length, int64_t begin,
               int64_t end) {
  const int64_t half = r.width / 2;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = r.cosines == nullptr ? 0 : r.positions[row] * half;
    const float* const cosines = r.cosines == nullptr ? nullptr : r.cosines + at;
    const float* const sines = r.sines + (r.sines == nullptr ? 0 : at);
    for (int64_t h = 0; h < r.heads; ++h) {
      const int64_t in_rows = row * r.pitch + h * r.width, in_heads = (h * length + row) * r.width;
      turn_row(static_cast<const T*>(from) + (kBack ? in_heads : in_rows),
               static_cast<T*>(to) + (kBack ? in_rows : in_heads), cosines, sines, half,
               kBack ? -1.0f : 1.0f);
    }
  }
}

void rotate(const Rotary& r, const void* from, void* to, int64_t length, int64_t begin,
            int64_t end) {
  if (r.type == Type::kBFloat16) return turn_rows<Bf16, false>(r, from, to, length, begin, end);
  turn_rows<float, false>(r, from, to, length, begin, end);
}
void rotate_back(const Rotary& r, const void* from, void* to, int64_t length, int64_t begin,
                 int64_t end) {
  if (r.type == Type::kBFloat16) return turn_rows<Bf16, true>(r, from, to, length, begin, end);
  turn_rows<float, true>(r, from, to, length, begin, end);
}

}  // namespace
}  // namespace lockstep::inline v0::kernels::LOCKSTEP_ISA
