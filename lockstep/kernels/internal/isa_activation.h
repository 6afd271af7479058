// Activations, forward and backward. See Activate in kernels.h.
#pragma once

#include "lockstep/kernels/internal/isa_layout.h"
#include "lockstep/kernels/internal/isa_math.h"

namespace lockstep::inline v0::kernels::LOCKSTEP_ISA {
namespace {

// Hendrycks and Gimpel, "Gaussian error linear units" (2016): the second form's factors.
constexpr float kTanhScale = 0.79788456f, kTanhCubic = 0.044715f;

struct Activated {
  Floats y, slope;
};

LOCKSTEP_INLINE Activated tanh_gelu(Floats x) {
  // Beyond the bound the slope is 0 or 1 in float32; within it nothing overflows.
  const Floats bound = all(20.0f);
  const Floats near = if_less(bound, x, bound, if_less(x, all(0.0f) - bound, all(0.0f) - bound, x));
  const Floats square = near * near;
  const Floats t = hyperbolic_tangent(all(kTanhScale) * (near + all(kTanhCubic) * square * near));
  const Floats half = all(0.5f) * (all(1.0f) + t);
  const Floats inner = all(kTanhScale) * (all(1.0f) + all(3 * kTanhCubic) * square);
  return {x * half, fused(all(0.5f) * near * (all(1.0f) - t * t), inner, half)};
}

template <Activation kActivation>
LOCKSTEP_INLINE Activated activated(Floats x) {
  if constexpr (kActivation == Activation::kRelu) {
    const Floats zero = all(0.0f);
    return {if_less(x, zero, zero, x), if_less(zero, x, all(1.0f), zero)};
  } else if constexpr (kActivation == Activation::kGelu) {
    const Normal n = normal(x);
    return {x * n.below, fused(x, n.density, n.below)};
  } else {
    return tanh_gelu(x);
  }
}

template <typename T, Activation kActivation, bool kSlope>
void activate_rows(const Activate& a, const ActivateOutputs& out, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* const x = static_cast<const T*>(a.x) + row * a.width;
    T* const y = static_cast<T*>(out.y) + row * a.width;
    T* const slope = kSlope ? static_cast<T*>(out.slope) + row * a.width : nullptr;
    const auto part = [&](int64_t c, int64_t n) LOCKSTEP_INLINED {
      const Activated v = activated<kActivation>(load(x + c, n) + load(a.bias + c, n));
      store(y + c, v.y, n);
      if constexpr (kSlope) store(slope + c, v.slope, n);
    };
    for_columns(a.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
      part(c, n);
      if (m > 0) part(c + kLanes, m);
    });
  }
}

template <typename T>
void multiply_slope(const ActivateGradients& g, int64_t row) {
  const T* const slope = static_cast<const T*>(g.slope) + row * g.width;
  T* const dy = static_cast<T*>(g.dy) + row * g.width;
  const auto part = [&](int64_t c, int64_t n) LOCKSTEP_INLINED {
    const Floats dx = load(dy + c, n) * load(slope + c, n);
    store(dy + c, dx, n);
    store(g.bias_sum + c, load(g.bias_sum + c, n) + dx, n);
  };
  for_columns(g.width, [&](int64_t c, int64_t n, int64_t m) LOCKSTEP_INLINED {
    part(c, n);
    if (m > 0) part(c + kLanes, m);
  });
}

template <typename T>
void activate_rows_backward(const ActivateGradients& g, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row += kTransposeRows) {
    const int64_t stop = row + kTransposeRows < end ? row + kTransposeRows : end;
    for (int64_t r = row; r < stop; ++r) multiply_slope<T>(g, r);
    if (g.dx_columns != nullptr)
      transpose_shorts(
          {static_cast<const uint16_t*>(g.dy) + row * g.width, stop - row, g.width, g.width},
          g.dx_columns + row, g.columns_pitch);
  }
}

template <typename T, Activation kActivation>
void activate_kind(const Activate& a, const ActivateOutputs& out, int64_t begin, int64_t end) {
  if (out.slope != nullptr) return activate_rows<T, kActivation, true>(a, out, begin, end);
  activate_rows<T, kActivation, false>(a, out, begin, end);
}

template <typename T>
void activate_typed(const Activate& a, const ActivateOutputs& out, int64_t begin, int64_t end) {
  switch (a.activation) {
    case Activation::kGelu:
      return activate_kind<T, Activation::kGelu>(a, out, begin, end);
    case Activation::kGeluTanh:
      return activate_kind<T, Activation::kGeluTanh>(a, out, begin, end);
    case Activation::kRelu:
      return activate_kind<T, Activation::kRelu>(a, out, begin, end);
  }
}

void activate(const Activate& a, const ActivateOutputs& out, int64_t begin, int64_t end) {
  if (a.type == Type::kBFloat16) return activate_typed<Bf16>(a, out, begin, end);
  activate_typed<float>(a, out, begin, end);
}

void activate_backward(const ActivateGradients& g, int64_t begin, int64_t end) {
  if (g.type == Type::kBFloat16) return activate_rows_backward<Bf16>(g, begin, end);
  activate_rows_backward<float>(g, begin, end);
}

}  // namespace
}  // namespace lockstep::inline v0::kernels::LOCKSTEP_ISA
