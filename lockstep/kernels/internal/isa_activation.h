// Activations, forward and backward. See Activate in kernels.h.
#pragma once

#include "lockstep/kernels/internal/isa_layout.h"
#include "lockstep/kernels/internal/isa_math.h"

namespace lockstep::kernels::LOCKSTEP_ISA {
namespace {

// Hendrycks and Gimpel, "Gaussian error linear units" (2016): the second form's factors.
constexpr float kTanhScale = 0.79788456f, kTanhCubic = 0.044715f;

template <Activation kActivation>
LOCKSTEP_INLINE Floats activated(Floats x) {
  if constexpr (kActivation == Activation::kRelu) {
    return if_less(x, all(0.0f), all(0.0f), x);
  } else if constexpr (kActivation == Activation::kGelu) {
    return x * normal(x).below;
  } else {
    const Floats inner = all(kTanhScale) * (x + all(kTanhCubic) * x * x * x);
    return all(0.5f) * x * (all(1.0f) + hyperbolic_tangent(inner));
  }
}

template <Activation kActivation>
LOCKSTEP_INLINE Floats slope(Floats x) {
  if constexpr (kActivation == Activation::kRelu) {
    return if_less(all(0.0f), x, all(1.0f), all(0.0f));
  } else if constexpr (kActivation == Activation::kGelu) {
    const Normal n = normal(x);
    return fused(x, n.density, n.below);
  } else {
    // Beyond the bound the slope is 0 or 1 in float32; within it nothing overflows.
    const Floats bound = all(20.0f);
    x = if_less(bound, x, bound, if_less(x, all(0.0f) - bound, all(0.0f) - bound, x));
    const Floats square = x * x;
    const Floats t = hyperbolic_tangent(all(kTanhScale) * (x + all(kTanhCubic) * square * x));
    const Floats inner = all(kTanhScale) * (all(1.0f) + all(3 * kTanhCubic) * square);
    return all(0.5f) * (all(1.0f) + t) + all(0.5f) * x * (all(1.0f) - t * t) * inner;
  }
}

template <typename T, Activation kActivation>
void activate_rows(const Activate& a, void* y, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* const from = static_cast<const T*>(a.x) + row * a.width;
    T* const to = static_cast<T*>(y) + row * a.width;
    for_columns(a.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      store(to + c, activated<kActivation>(load(from + c, n) + load(a.bias + c, n)), n);
      const int64_t d = c + kLanes;
      if (m > 0) store(to + d, activated<kActivation>(load(from + d, m) + load(a.bias + d, m)), m);
    });
  }
}

template <typename T, Activation kActivation>
void activate_row_backward(const Activate& a, const ActivateGradients& g, int64_t row) {
  const T* const x = static_cast<const T*>(a.x) + row * a.width;
  T* const dy = static_cast<T*>(g.dy) + row * a.width;
  const auto part = [&](int64_t c, int64_t n) LOCKSTEP_INLINED {
    const Floats dx = load(dy + c, n) * slope<kActivation>(load(x + c, n) + load(a.bias + c, n));
    store(dy + c, dx, n);
    store(g.bias_sum + c, load(g.bias_sum + c, n) + dx, n);
  };
  for_columns(a.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
    part(c, n);
    if (m > 0) part(c + kLanes, m);
  });
}

template <typename T, Activation kActivation>
void activate_rows_backward(const Activate& a, const ActivateGradients& g, int64_t begin,
                            int64_t end) {
  for (int64_t row = begin; row < end; row += kTransposeRows) {
    const int64_t stop = row + kTransposeRows < end ? row + kTransposeRows : end;
    for (int64_t r = row; r < stop; ++r) activate_row_backward<T, kActivation>(a, g, r);
    if (g.dx_columns != nullptr)
      transpose_shorts(
          {static_cast<const uint16_t*>(g.dy) + row * a.width, stop - row, a.width, a.width},
          g.dx_columns + row, g.columns_pitch);
  }
}

template <typename T>
void activate_typed(const Activate& a, void* y, int64_t begin, int64_t end) {
  switch (a.activation) {
    case Activation::kGelu:
      return activate_rows<T, Activation::kGelu>(a, y, begin, end);
    case Activation::kGeluTanh:
      return activate_rows<T, Activation::kGeluTanh>(a, y, begin, end);
    case Activation::kRelu:
      return activate_rows<T, Activation::kRelu>(a, y, begin, end);
  }
}

template <typename T>
void activate_backward_typed(const Activate& a, const ActivateGradients& g, int64_t begin,
                             int64_t end) {
  switch (a.activation) {
    case Activation::kGelu:
      return activate_rows_backward<T, Activation::kGelu>(a, g, begin, end);
    case Activation::kGeluTanh:
      return activate_rows_backward<T, Activation::kGeluTanh>(a, g, begin, end);
    case Activation::kRelu:
      return activate_rows_backward<T, Activation::kRelu>(a, g, begin, end);
  }
}

void activate(const Activate& a, void* y, int64_t begin, int64_t end) {
  if (a.type == Type::kBFloat16) return activate_typed<Bf16>(a, y, begin, end);
  activate_typed<float>(a, y, begin, end);
}

void activate_backward(const Activate& a, const ActivateGradients& g, int64_t begin, int64_t end) {
  if (a.type == Type::kBFloat16) return activate_backward_typed<Bf16>(a, g, begin, end);
  activate_backward_typed<float>(a, g, begin, end);
}

}  // namespace
}  // namespace lockstep::kernels::LOCKSTEP_ISA
