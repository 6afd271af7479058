// Sixteen floats at a time on every processor, with the same lanes and the same order of
// operations, so that results do not depend on the processor.
//
// The isa_*.h files are compiled once for every instruction set (isa_*.cpp), each time in the
// namespace LOCKSTEP_ISA. Nothing in them may be an inline function or template that other files
// instantiate too: the linker would keep one copy for all, perhaps the one for a newer processor.
// They therefore use no standard library, and everything lies in an anonymous namespace.
#pragma once

// A value that differs from itself is NaN, GCC's vector types need typedef, and every file compiles
// these bodies once.
// NOLINTBEGIN(misc-redundant-expression, modernize-use-using, misc-definitions-in-headers)

#ifndef LOCKSTEP_ISA
#error "include this from isa_*.cpp only"
#endif

#include <stddef.h>
#include <stdint.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(LOCKSTEP_NEON)
#include <arm_neon.h>
#endif

#define LOCKSTEP_INLINE __attribute__((always_inline)) inline
#define LOCKSTEP_INLINED __attribute__((always_inline))  // stands after a lambda's parameters

namespace lockstep::inline v0::kernels::LOCKSTEP_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kNative = 16;
#elif defined(__AVX2__)
constexpr int kNative = 8;
#else
constexpr int kNative = 4;
#endif
constexpr int kLanes = 16;
constexpr int kParts = kLanes / kNative;

typedef float NativeFloats __attribute__((vector_size(kNative * 4)));
typedef uint32_t NativeWords __attribute__((vector_size(kNative * 4)));
typedef int32_t NativeInts __attribute__((vector_size(kNative * 4)));
typedef uint16_t NativeShorts __attribute__((vector_size(kNative * 2)));

struct Floats {
  NativeFloats part[kParts];
};
struct Words {
  NativeWords part[kParts];
};

struct Bf16 {
  uint16_t bits;
};

#define LOCKSTEP_EACH for (int k = 0; k < kParts; ++k)
#define LOCKSTEP_BINARY(V, op)                        \
  LOCKSTEP_INLINE V operator op(V a, V b) {           \
    LOCKSTEP_EACH a.part[k] = a.part[k] op b.part[k]; \
    return a;                                         \
  }
LOCKSTEP_BINARY(Floats, +)
LOCKSTEP_BINARY(Floats, -)
LOCKSTEP_BINARY(Floats, *)
LOCKSTEP_BINARY(Floats, /)
LOCKSTEP_BINARY(Words, +)
LOCKSTEP_BINARY(Words, *)
LOCKSTEP_BINARY(Words, ^)
LOCKSTEP_BINARY(Words, &)
LOCKSTEP_BINARY(Words, |)
#undef LOCKSTEP_BINARY

LOCKSTEP_INLINE Floats all(float x) {
  Floats v;
  LOCKSTEP_EACH v.part[k] = NativeFloats{} + x;
  return v;
}
LOCKSTEP_INLINE Words all_words(uint32_t x) {
  Words v;
  LOCKSTEP_EACH v.part[k] = NativeWords{} + x;
  return v;
}
LOCKSTEP_INLINE Words operator>>(Words v, int by) {
  LOCKSTEP_EACH v.part[k] = v.part[k] >> by;
  return v;
}
LOCKSTEP_INLINE Words operator<<(Words v, int by) {
  LOCKSTEP_EACH v.part[k] = v.part[k] << by;
  return v;
}
LOCKSTEP_INLINE Words bits(Floats v) {
  Words w;
  LOCKSTEP_EACH w.part[k] = reinterpret_cast<NativeWords>(v.part[k]);
  return w;
}
LOCKSTEP_INLINE Floats as_floats(Words w) {
  Floats v;
  LOCKSTEP_EACH v.part[k] = reinterpret_cast<NativeFloats>(w.part[k]);
  return v;
}

// The words as numbers.
// Requires: they are below 2^31.
LOCKSTEP_INLINE Floats numbers_of(Words w) {
  Floats v;
  LOCKSTEP_EACH v.part[k] =
      __builtin_convertvector(reinterpret_cast<NativeInts>(w.part[k]), NativeFloats);
  return v;
}
LOCKSTEP_INLINE Floats square_root(Floats v) {
#if defined(__AVX512F__)
  LOCKSTEP_EACH v.part[k] = _mm512_sqrt_ps(v.part[k]);
#elif defined(__AVX2__)
  LOCKSTEP_EACH v.part[k] = _mm256_sqrt_ps(v.part[k]);
#elif defined(LOCKSTEP_NEON)
  LOCKSTEP_EACH v.part[k] = vsqrtq_f32(v.part[k]);
#else
  LOCKSTEP_EACH for (int i = 0; i < kNative; ++i) v.part[k][i] = __builtin_sqrtf(v.part[k][i]);
#endif
  return v;
}

// a * b + c, rounded once where the processor can.
LOCKSTEP_INLINE Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  LOCKSTEP_EACH a.part[k] = _mm512_fmadd_ps(a.part[k], b.part[k], c.part[k]);
#elif defined(__FMA__)
  LOCKSTEP_EACH a.part[k] = _mm256_fmadd_ps(a.part[k], b.part[k], c.part[k]);
#elif defined(LOCKSTEP_NEON)
  LOCKSTEP_EACH a.part[k] = vfmaq_f32(c.part[k], a.part[k], b.part[k]);
#else
  LOCKSTEP_EACH a.part[k] = a.part[k] * b.part[k] + c.part[k];
#endif
  return a;
}

// a < b ? x : y, lane by lane.
LOCKSTEP_INLINE Floats if_less(Floats a, Floats b, Floats x, Floats y) {
  LOCKSTEP_EACH x.part[k] = a.part[k] < b.part[k] ? x.part[k] : y.part[k];
  return x;
}
LOCKSTEP_INLINE Floats if_below(Words a, Words b, Floats x, Floats y) {
  // Signed comparisons are cheaper where there are no masks; all numbers here are below 2^31.
  LOCKSTEP_EACH x.part[k] =
      reinterpret_cast<NativeInts>(a.part[k]) < reinterpret_cast<NativeInts>(b.part[k]) ? x.part[k]
                                                                                        : y.part[k];
  return x;
}
LOCKSTEP_INLINE Floats larger(Floats a, Floats b) {
  return if_less(a, b, b, a);
}
LOCKSTEP_INLINE Floats magnitude(Floats x) {
  return as_floats(bits(x) & all_words(0x7fffffff));
}

// ---- memory: n < 16 lanes touch no more than n elements ----

// It copies part by part, because a copy of the whole stays in memory.
LOCKSTEP_INLINE Floats load(const float* from) {
  Floats v;
  LOCKSTEP_EACH __builtin_memcpy(&v.part[k], from + k * kNative, sizeof v.part[k]);
  return v;
}
LOCKSTEP_INLINE Floats load(const Bf16* from) {
  Floats v;
  LOCKSTEP_EACH {
    NativeShorts narrow;
    __builtin_memcpy(&narrow, from + k * kNative, sizeof narrow);
    v.part[k] = reinterpret_cast<NativeFloats>(__builtin_convertvector(narrow, NativeWords) << 16);
  }
  return v;
}
LOCKSTEP_INLINE Words load_words(const uint32_t* from) {
  Words v;
  LOCKSTEP_EACH __builtin_memcpy(&v.part[k], from + k * kNative, sizeof v.part[k]);
  return v;
}
LOCKSTEP_INLINE void store_words(uint32_t* to, Words v) {
  LOCKSTEP_EACH __builtin_memcpy(to + k * kNative, &v.part[k], sizeof v.part[k]);
}
LOCKSTEP_INLINE void store(float* to, Floats v) {
  LOCKSTEP_EACH __builtin_memcpy(to + k * kNative, &v.part[k], sizeof v.part[k]);
}
// The bits of bfloat16 in the lower half of each lane.
LOCKSTEP_INLINE Words rounded(Floats v) {
  Words w;
  LOCKSTEP_EACH {
    const NativeWords raw = reinterpret_cast<NativeWords>(v.part[k]);
    const NativeWords nan = NativeWords{} + 0x7fc0;
    w.part[k] = v.part[k] != v.part[k] ? nan : (raw + 0x7fff + ((raw >> 16) & 1)) >> 16;
  }
  return w;
}
LOCKSTEP_INLINE void store(Bf16* to, Floats v) {
  const Words w = rounded(v);
  LOCKSTEP_EACH {
    const NativeShorts narrow = __builtin_convertvector(w.part[k], NativeShorts);
    __builtin_memcpy(to + k * kNative, &narrow, sizeof narrow);
  }
}
template <typename T>
__attribute__((noinline)) void load_some(const T* from, int64_t n, float rest, float* lanes) {
  T some[kLanes];
  __builtin_memset(some, 0, sizeof some);
  for (int64_t i = 0; i < n; ++i) some[i] = from[i];
  store(lanes, load(some));
  for (int64_t i = n < 0 ? 0 : n; i < kLanes; ++i) lanes[i] = rest;
}
template <typename T>
__attribute__((noinline)) void store_some(T* to, const float* lanes, int64_t n) {
  T some[kLanes];
  store(some, load(lanes));
  for (int64_t i = 0; i < n; ++i) to[i] = some[i];
}
// Loads n lanes; the others get `rest`.
template <typename T>
LOCKSTEP_INLINE Floats load(const T* from, int64_t n, float rest = 0) {
  if (n >= kLanes) return load(from);
  float lanes[kLanes];
  load_some(from, n, rest, lanes);
  return load(lanes);
}
template <typename T>
LOCKSTEP_INLINE void store(T* to, Floats v, int64_t n) {
  if (n >= kLanes) return store(to, v);
  float lanes[kLanes];
  store(lanes, v);
  store_some(to, lanes, n);
}

// The sum of the lanes, and the largest lane: pairs first, then pairs of pairs.
LOCKSTEP_INLINE float sum(Floats v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  return lanes[0];
}
LOCKSTEP_INLINE float most(Floats v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i)
      lanes[i] = lanes[i] < lanes[i + step] ? lanes[i + step] : lanes[i];
  return lanes[0];
}

// Calls body(column, lanes of the first sixteen, lanes of the second) for every 32 columns; in all
// calls but the last the lanes are constants.
template <typename Body>
LOCKSTEP_INLINE void for_columns(int64_t width, Body body) {
  int64_t c = 0;
  for (; c + 2 * kLanes <= width; c += 2 * kLanes) body(c, int64_t{kLanes}, int64_t{kLanes});
  if (c < width) {
    const int64_t left = width - c;
    body(c, left < kLanes ? left : kLanes, left < kLanes ? 0 : left - kLanes);
  }
}

}  // namespace
}  // namespace lockstep::inline v0::kernels::LOCKSTEP_ISA

// NOLINTEND(misc-redundant-expression, modernize-use-using, misc-definitions-in-headers)
