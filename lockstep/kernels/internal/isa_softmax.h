// Attention's weights, forward and backward. See Softmax in kernels.h.
#pragma once

#include "lockstep/kernels/internal/isa_math.h"

namespace lockstep::inline v0::kernels::LOCKSTEP_ISA {
namespace {

LOCKSTEP_INLINE Floats scaled_score(const Softmax& s, const float* row, int64_t c, int64_t n) {
  // The values beyond the keys are never read.
  Floats v = load(row + c, n) * all(s.scale);
  if (s.bias != nullptr) v = v + load(s.bias + c, n);
  if (n >= kLanes) return v;
  float lanes[kLanes];
  store(lanes, v);
  return load(lanes, n, -__builtin_inff());
}

// Replaces a row by exp(score - most), and returns the sum.
LOCKSTEP_INLINE float exponentials(const Softmax& s, float* row, float largest) {
  Floats first = all(0.0f), second = all(0.0f);
  for_columns(s.keys, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
    const Floats a = exponential(scaled_score(s, row, c, n) - all(largest));
    store(row + c, a, n);
    first = first + a;
    if (m <= 0) return;
    const Floats b = exponential(scaled_score(s, row, c + kLanes, m) - all(largest));
    store(row + c + kLanes, b, m);
    second = second + b;
  });
  return sum(first + second);
}

template <typename T, bool kDrops>
void softmax_rows(const Softmax& s, const SoftmaxOutputs& out, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    float* const row = out.scores + r * s.pitch;
    Floats first = all(-__builtin_inff()), second = first;
    for_columns(s.keys, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      first = larger(first, scaled_score(s, row, c, n));
      if (m > 0) second = larger(second, scaled_score(s, row, c + kLanes, m));
    });
    const float largest = most(larger(first, second));
    const float inverse = 1.0f / exponentials(s, row, largest);
    RowKey mask{};
    if constexpr (kDrops) mask = row_key(s.dropout.seed, s.mask_row + r);
    T* const weights = static_cast<T*>(out.weights) + r * s.pitch;
    for_columns(s.pitch, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      Pair w{load(row + c, s.keys - c) * all(inverse), all(0.0f)};
      if (m > 0) w.second = load(row + c + kLanes, s.keys - c - kLanes) * all(inverse);
      w = drop<kDrops>(w, s.dropout, mask, c);
      store(weights + c, w.first, n);
      store(weights + c + kLanes, w.second, m);
    });
    out.most[r] = largest;
    out.inverse[r] = inverse;
  }
}

// Leaves a row's weights after dropout in `row`, and the gradient of its scores in `dweights`.
template <bool kDrops>
LOCKSTEP_INLINE void softmax_row_backward(const Softmax& s, const SoftmaxGradients& g, int64_t r) {
  float* const row = g.scores + r * s.pitch;
  float* const d = g.dweights + r * s.pitch;
  RowKey mask{};
  if constexpr (kDrops) mask = row_key(s.dropout.seed, s.mask_row + r);
  exponentials(s, row, g.most[r]);
  const Floats inverse = all(g.inverse[r]);
  Floats first = all(0.0f), second = all(0.0f);
  for_columns(s.pitch, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
    const int64_t left = s.keys - c;
    Pair p{load(row + c, left) * inverse, all(0.0f)};
    Pair dp{load(d + c, left), all(0.0f)};
    if (m > 0) {
      p.second = load(row + c + kLanes, left - kLanes) * inverse;
      dp.second = load(d + c + kLanes, left - kLanes);
    }
    dp = drop<kDrops>(dp, s.dropout, mask, c);
    store(row + c, p.first, n);
    store(row + c + kLanes, p.second, m);
    store(d + c, dp.first, n);
    store(d + c + kLanes, dp.second, m);
    first = first + p.first * dp.first;
    second = second + p.second * dp.second;
  });
  const Floats mean = all(sum(first + second)), scale = all(s.scale);
  for_columns(s.pitch, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
    Pair p{load(row + c, n), load(row + c + kLanes, m)};
    store(d + c, p.first * (load(d + c, n) - mean) * scale, n);
    store(d + c + kLanes, p.second * (load(d + c + kLanes, m) - mean) * scale, m);
    p = drop<kDrops>(p, s.dropout, mask, c);
    store(row + c, p.first, n);
    store(row + c + kLanes, p.second, m);
  });
}

// Packs two rows of floats as one row of pairs of bfloat16, in panels (kPanel) of `inner` rows.
LOCKSTEP_INLINE void pack_pair(const float* even, const float* odd, int64_t pair, int64_t inner,
                               int64_t pitch, uint32_t* to) {
  for (int64_t c = 0; c < pitch; c += kLanes) {
    const int64_t panel = c / kPanel * kPanel;
    const int64_t panel_width = pitch - panel < kPanel ? pitch - panel : kPanel;
    uint32_t* const at = to + panel * (inner / 2) + pair * panel_width + (c - panel);
    const Words low = even == nullptr ? all_words(0) : rounded(load(even + c));
    const Words high = odd == nullptr ? all_words(0) : rounded(load(odd + c));
    store_words(at, low | (high << 16));
  }
}

void pack_gradients(const Softmax& s, const SoftmaxGradients& g, int64_t rows) {
  for (int64_t r = 0; r < g.rows; r += 2) {
    const int64_t even = r * s.pitch, odd = even + s.pitch;
    const float* const none = nullptr;
    pack_pair(r < rows ? g.scores + even : none, r + 1 < rows ? g.scores + odd : none, r / 2,
              g.rows, s.pitch, static_cast<uint32_t*>(g.weights_packed));
    pack_pair(r < rows ? g.dweights + even : none, r + 1 < rows ? g.dweights + odd : none, r / 2,
              g.rows, s.pitch, static_cast<uint32_t*>(g.dscores_packed));
  }
}

template <typename T, bool kDrops>
void softmax_rows_backward(const Softmax& s, const SoftmaxGradients& g, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) softmax_row_backward<kDrops>(s, g, r);
  const int64_t done = rows * s.pitch, all_rows = g.rows * s.pitch;
  if constexpr (sizeof(T) == 4) {
    for (int64_t i = done; i < all_rows; ++i) g.scores[i] = g.dweights[i] = 0;
  } else {
    for (int64_t i = 0; i < done; i += kLanes)
      store(static_cast<T*>(g.dscores) + i, load(g.dweights + i));
    pack_gradients(s, g, rows);
  }
}

void softmax(const Softmax& s, const SoftmaxOutputs& out, int64_t rows) {
  const bool drops = s.dropout.threshold > 0;
  if (s.type == Type::kBFloat16)
    return drops ? softmax_rows<Bf16, true>(s, out, rows) : softmax_rows<Bf16, false>(s, out, rows);
  drops ? softmax_rows<float, true>(s, out, rows) : softmax_rows<float, false>(s, out, rows);
}

void softmax_backward(const Softmax& s, const SoftmaxGradients& g, int64_t rows) {
  const bool drops = s.dropout.threshold > 0;
  if (s.type == Type::kBFloat16)
    return drops ? softmax_rows_backward<Bf16, true>(s, g, rows)
                 : softmax_rows_backward<Bf16, false>(s, g, rows);
  drops ? softmax_rows_backward<float, true>(s, g, rows)
        : softmax_rows_backward<float, false>(s, g, rows);
}

}  // namespace
}  // namespace lockstep::inline v0::kernels::LOCKSTEP_ISA
