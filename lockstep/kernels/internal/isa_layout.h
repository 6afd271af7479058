// Conversions, transposes and the layouts that products need. See Kernels in kernels.h.
#pragma once

#include "lockstep/kernels/internal/isa_vector.h"
#include "lockstep/kernels/kernels.h"

namespace lockstep::inline v0::kernels::LOCKSTEP_ISA {
namespace {

// ---- transposes: a square of native words by exchanging ever smaller blocks ----

template <int... kLane>
struct LaneList {
  // Exchanges blocks of two rows that are kStep apart.
  template <int kStep>
  LOCKSTEP_INLINE static void exchange(NativeWords& a, NativeWords& b) {
    const NativeWords low =
        __builtin_shufflevector(a, b, ((kLane & kStep) ? kNative + kLane - kStep : kLane)...);
    b = __builtin_shufflevector(a, b, ((kLane & kStep) ? kNative + kLane : kLane + kStep)...);
    a = low;
  }
};
#if defined(__AVX512F__)
using NativeLanes = LaneList<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>;
#elif defined(__AVX2__)
using NativeLanes = LaneList<0, 1, 2, 3, 4, 5, 6, 7>;
#else
using NativeLanes = LaneList<0, 1, 2, 3>;
#endif

template <int kStep>
LOCKSTEP_INLINE void exchange_blocks(NativeWords* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < kNative; ++i)
    if ((i & kStep) == 0) NativeLanes::exchange<kStep>(rows[i], rows[i + kStep]);
  if constexpr (kStep > 1) exchange_blocks<kStep / 2>(rows);
}

LOCKSTEP_INLINE NativeWords load_native(const void* from) {
  NativeWords v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
LOCKSTEP_INLINE void store_native(void* to, NativeWords v) {
  __builtin_memcpy(to, &v, sizeof v);
}

template <typename T>
struct Matrix {
  const T* data;
  int64_t rows, columns, pitch;
};

// Transposes the rows from `row` and the columns from `column` one by one, to to[column * pitch +
// row].
template <typename T>
void transpose_rest(Matrix<T> m, int64_t row, int64_t column, T* to, int64_t pitch) {
  for (int64_t r = row; r < m.rows; ++r)
    for (int64_t c = column; c < m.columns; ++c) to[c * pitch + r] = m.data[r * m.pitch + c];
}

void transpose_words(Matrix<uint32_t> m, uint32_t* to, int64_t pitch) {
  const int64_t rows = m.rows / kNative * kNative, columns = m.columns / kNative * kNative;
  for (int64_t r = 0; r < rows; r += kNative) {
    for (int64_t c = 0; c < columns; c += kNative) {
      NativeWords square[kNative];
#pragma GCC unroll 16
      for (int i = 0; i < kNative; ++i) square[i] = load_native(m.data + (r + i) * m.pitch + c);
      exchange_blocks<kNative / 2>(square);
#pragma GCC unroll 16
      for (int i = 0; i < kNative; ++i) store_native(to + (c + i) * pitch + r, square[i]);
    }
  }
  transpose_rest(m, rows, 0, to, pitch);
  m.rows = rows;
  transpose_rest(m, 0, columns, to, pitch);
}

// This many rows give whole cache lines of the transpose.
constexpr int64_t kTransposeRows = 32;

// Pairs of rows become words, for even and for odd columns, and those are transposed.
LOCKSTEP_INLINE void transpose_square(const uint16_t* from, int64_t from_pitch, uint16_t* to,
                                      int64_t pitch) {
  NativeWords even[kNative], odd[kNative];
#pragma GCC unroll 16
  for (int i = 0; i < kNative; ++i) {
    const NativeWords a = load_native(from + 2 * i * from_pitch);
    const NativeWords b = load_native(from + (2 * i + 1) * from_pitch);
    even[i] = (a & 0xffff) | (b << 16);
    odd[i] = (a >> 16) | (b & 0xffff0000);
  }
  exchange_blocks<kNative / 2>(even);
  exchange_blocks<kNative / 2>(odd);
#pragma GCC unroll 16
  for (int i = 0; i < kNative; ++i) {
    store_native(to + 2 * i * pitch, even[i]);
    store_native(to + (2 * i + 1) * pitch, odd[i]);
  }
}

void transpose_shorts(Matrix<uint16_t> m, uint16_t* to, int64_t pitch) {
  constexpr int64_t kSide = 2 * kNative;
  const int64_t rows = m.rows / kSide * kSide, columns = m.columns / kSide * kSide;
  // It goes down the rows of a block first, because their results lie together.
  for (int64_t r = 0; r < rows; r += kTransposeRows)
    for (int64_t c = 0; c < columns; c += kSide)
      for (int64_t i = r; i < rows && i < r + kTransposeRows; i += kSide)
        transpose_square(m.data + i * m.pitch + c, m.pitch, to + c * pitch + i, pitch);
  transpose_rest(m, rows, 0, to, pitch);
  m.rows = rows;
  transpose_rest(m, 0, columns, to, pitch);
}

void transpose(const Source& from, void* to, int64_t pitch) {
  if (from.type == Type::kBFloat16)
    return transpose_shorts(
        {static_cast<const uint16_t*>(from.data), from.rows, from.columns, from.pitch},
        static_cast<uint16_t*>(to), pitch);
  transpose_words({static_cast<const uint32_t*>(from.data), from.rows, from.columns, from.pitch},
                  static_cast<uint32_t*>(to), pitch);
}

// ---- packing ----

LOCKSTEP_INLINE Words load_shorts(const uint16_t* from, int64_t n) {
  uint16_t some[kLanes];
  if (n < kLanes) {
    __builtin_memset(some, 0, sizeof some);
    for (int64_t i = 0; i < n; ++i) some[i] = from[i];
    from = some;
  }
  Words w;
  LOCKSTEP_EACH {
    NativeShorts narrow;
    __builtin_memcpy(&narrow, from + k * kNative, sizeof narrow);
    w.part[k] = __builtin_convertvector(narrow, NativeWords);
  }
  return w;
}

LOCKSTEP_INLINE int64_t panel_width(int64_t columns, int64_t panel) {
  return columns - panel < kPanel ? columns - panel : kPanel;
}

void pack_short_rows(Matrix<uint16_t> m, int64_t inner, int64_t columns, uint32_t* to) {
  for (int64_t panel = 0; panel < columns; panel += kPanel) {
    const int64_t width = panel_width(columns, panel);
    for (int64_t r = 0; r < inner; r += 2) {
      for (int64_t c = panel; c < panel + width; c += kLanes, to += kLanes) {
        const uint16_t* const from = m.data + r * m.pitch + c;
        const Words low = load_shorts(from, r < m.rows ? m.columns - c : 0);
        const Words high = load_shorts(from + m.pitch, r + 1 < m.rows ? m.columns - c : 0);
        store_words(to, low | (high << 16));
      }
    }
  }
}

void pack_rows(const Source& from, int64_t inner, int64_t columns, void* to) {
  if (from.type == Type::kBFloat16)
    return pack_short_rows(
        {static_cast<const uint16_t*>(from.data), from.rows, from.columns, from.pitch}, inner,
        columns, static_cast<uint32_t*>(to));
  const float* const data = static_cast<const float*>(from.data);
  float* out = static_cast<float*>(to);
  for (int64_t r = 0; r < inner; ++r)
    for (int64_t c = 0; c < columns; c += kLanes, out += kLanes)
      store(out, load(data + r * from.pitch + c, r < from.rows ? from.columns - c : 0));
}

void pack_columns(const Source& from, int64_t inner, int64_t columns, void* to) {
  const bool is_padded = from.columns < inner || from.rows < columns;
  const int64_t words = from.type == Type::kBFloat16 ? inner / 2 * columns : inner * columns;
  if (is_padded) __builtin_memset(to, 0, static_cast<size_t>(words) * 4);
  auto* out = static_cast<uint32_t*>(to);
  if (from.type == Type::kFloat32) {
    return transpose_words(
        {static_cast<const uint32_t*>(from.data), from.rows, from.columns, from.pitch}, out,
        columns);
  }
  const auto* const data = static_cast<const uint16_t*>(from.data);
  for (int64_t panel = 0; panel < columns; panel += kPanel) {
    const int64_t width = panel_width(columns, panel);
    const int64_t rows = from.rows - panel < width ? from.rows - panel : width;
    if (rows > 0 && from.pitch % 2 == 0) {
      transpose_words({reinterpret_cast<const uint32_t*>(data + panel * from.pitch), rows,
                       from.columns / 2, from.pitch / 2},
                      out, width);
    }
    const int64_t done = from.pitch % 2 == 0 ? from.columns / 2 * 2 : 0;
    auto* const shorts = reinterpret_cast<uint16_t*>(out);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = done; c < from.columns; ++c)
        shorts[c / 2 * width * 2 + r * 2 + c % 2] = data[(panel + r) * from.pitch + c];
    out += inner / 2 * width;
  }
}

// ---- conversions and sums ----

void round(const float* from, uint16_t* to, int64_t count) {
  Bf16* const out = reinterpret_cast<Bf16*>(to);
  for (int64_t i = 0; i < count; i += kLanes) store(out + i, load(from + i, count - i), count - i);
}

void round_rows(const float* from, int64_t from_pitch, uint16_t* to, int64_t to_pitch, int64_t rows,
                int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) round(from + r * from_pitch, to + r * to_pitch, columns);
}

void widen(const uint16_t* from, float* to, int64_t count) {
  const Bf16* const in = reinterpret_cast<const Bf16*>(from);
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, load(in + i, count - i), count - i);
}

template <typename T>
void sum_typed_rows(const Source& from, float* sums, int64_t begin, int64_t end) {
  const T* const data = static_cast<const T*>(from.data);
  for (int64_t r = begin; r < end; ++r)
    for (int64_t c = 0; c < from.columns; c += kLanes) {
      const int64_t n = from.columns - c;
      store(sums + c, load(sums + c, n) + load(data + r * from.pitch + c, n), n);
    }
}

void sum_rows(const Source& from, float* sums, int64_t begin, int64_t end) {
  if (from.type == Type::kBFloat16) return sum_typed_rows<Bf16>(from, sums, begin, end);
  sum_typed_rows<float>(from, sums, begin, end);
}

}  // namespace
}  // namespace lockstep::inline v0::kernels::LOCKSTEP_ISA
