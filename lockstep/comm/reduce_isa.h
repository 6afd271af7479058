// The reduction kernels' body, compiled once for every instruction set (reduce_isa_*.cpp), each
// time in the namespace LOCKSTEP_ISA.
//
// Nothing here may be an inline function or template that other files instantiate too: the linker
// would keep one copy for all, perhaps the one for a newer processor. So no standard library, and
// everything in an anonymous namespace.
#ifndef LOCKSTEP_ISA
#error "include this from reduce_isa_*.cpp only"
#endif

#include <stddef.h>
#include <stdint.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "lockstep/comm/reduce_isa_table.h"

namespace lockstep::LOCKSTEP_ISA {
namespace {

// ---- element by element, any type and operation ----

// Blocks small enough that the accumulator stays in the first-level cache.
constexpr int64_t kBlock = 1024;

template <ReduceKind kKind, typename T>
inline T combine(T a, T b) {
  constexpr bool kFloating = static_cast<T>(0.5) != static_cast<T>(0);
  if constexpr (kKind == ReduceKind::kSum || kKind == ReduceKind::kAvg) {
    if constexpr (kFloating)
      return a + b;
    else  // unsigned: wrapping around is defined
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else if constexpr (kKind == ReduceKind::kProduct) {
    if constexpr (kFloating)
      return a * b;
    else
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else if constexpr (kKind == ReduceKind::kMin) {
    return a < b || a != a ? a : b;
  } else if constexpr (kKind == ReduceKind::kMax) {
    return a > b || a != a ? a : b;
  } else if constexpr (kKind == ReduceKind::kBitAnd) {
    return static_cast<T>(a & b);
  } else if constexpr (kKind == ReduceKind::kBitOr) {
    return static_cast<T>(a | b);
  } else {
    return static_cast<T>(a ^ b);
  }
}

struct Bool {
  uint8_t byte;
};
template <ReduceKind kKind>
inline Bool combine_bool(Bool a, Bool b) {
  const bool x = a.byte != 0, y = b.byte != 0;
  if constexpr (kKind == ReduceKind::kSum || kKind == ReduceKind::kMax ||
                kKind == ReduceKind::kBitOr)
    return {static_cast<uint8_t>(x | y)};
  else if constexpr (kKind == ReduceKind::kBitXor)
    return {static_cast<uint8_t>(x != y)};
  else
    return {static_cast<uint8_t>(x & y)};
}

inline float bits_to_float(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

struct Bf16 {
  uint16_t bits;
};
inline float to_float(Bf16 x) {
  return bits_to_float(static_cast<uint32_t>(x.bits) << 16);
}
inline Bf16 to_bf16(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return {static_cast<uint16_t>(x != x ? 0x7fc0 : rounded)};
}

struct Fp16 {
  uint16_t bits;
};
inline float to_float(Fp16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  if (magnitude >= 0x0f800000)  // infinity and NaN
    return bits_to_float(sign | 0x70000000 | magnitude);
  // Scaling by 2^112 moves the exponent's bias, subnormals included.
  return bits_to_float(sign | __builtin_bit_cast(uint32_t, bits_to_float(magnitude) * 0x1p112f));
}
inline Fp16 to_fp16(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t result;
  if (magnitude > 0x7f800000) {
    result = 0x7e00;  // NaN
  } else if (magnitude >= 0x477ff000) {
    result = 0x7c00;  // rounds to infinity
  } else if (magnitude < 0x38800000) {
    // Subnormal or zero: the addition rounds at the right bit.
    const float shifted = bits_to_float(magnitude) + 0.5f;
    result = __builtin_bit_cast(uint32_t, shifted) - 0x3f000000;
  } else {
    result = (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
  }
  return {static_cast<uint16_t>(sign | result)};
}

template <typename T>
struct Accumulate {
  using Type = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
template <>
struct Accumulate<Bf16> {
  using Type = float;
  static float load(Bf16 x) { return to_float(x); }
  static Bf16 store(float x) { return to_bf16(x); }
};
template <>
struct Accumulate<Fp16> {
  using Type = float;
  static float load(Fp16 x) { return to_float(x); }
  static Fp16 store(float x) { return to_fp16(x); }
};

template <ReduceKind kKind, typename T>
void reduce_blocks(const ReduceArguments& a, int64_t begin) {
  using How = Accumulate<T>;
  using A = typename How::Type;
  A sum[kBlock];
  for (; begin < a.count; begin += kBlock) {
    const int64_t n = a.count - begin < kBlock ? a.count - begin : kBlock;
    const T* first = reinterpret_cast<const T*>(a.inputs[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = How::load(first[i]);
    for (int k = 1; k < a.input_count; ++k) {
      const T* next = reinterpret_cast<const T*>(a.inputs[k]) + begin;
      for (int64_t i = 0; i < n; ++i) {
        if constexpr (__is_same(T, Bool))
          sum[i] = combine_bool<kKind>(sum[i], next[i]);
        else
          sum[i] = combine<kKind, A>(sum[i], How::load(next[i]));
      }
    }
    if constexpr (kKind == ReduceKind::kAvg && !__is_same(T, Bool)) {
      const A ranks = static_cast<A>(a.input_count);
      for (int64_t i = 0; i < n; ++i) sum[i] = sum[i] / ranks;
    }
    for (int k = 0; k < a.output_count; ++k) {
      T* out = reinterpret_cast<T*>(a.outputs[k]) + begin;
      for (int64_t i = 0; i < n; ++i) out[i] = How::store(sum[i]);
    }
  }
}

// ---- sums and averages of floats, a vector at a time, in one pass ----

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef float Floats __attribute__((vector_size(kWidth * 4)));
typedef uint32_t Words __attribute__((vector_size(kWidth * 4)));
typedef int32_t Mask __attribute__((vector_size(kWidth * 4)));
typedef uint16_t Halves __attribute__((vector_size(kWidth * 2)));

template <typename V>
inline V load(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
template <typename V>
inline void store(void* to, V v) {
  __builtin_memcpy(to, &v, sizeof v);
}

struct AsFloat {
  static constexpr int kBytes = 4;
  static Floats read(const void* from) { return load<Floats>(from); }
  static void write(void* to, Floats v) { store(to, v); }
};

struct AsBf16 {
  static constexpr int kBytes = 2;
#if defined(__AVX512BW__)
  static Floats read(const void* from) {
    const __m256i halves = _mm256_loadu_si256(static_cast<const __m256i*>(from));
    return reinterpret_cast<Floats>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  static void write(void* to, Floats v) {
    const auto floats = reinterpret_cast<__m512>(v);
    const auto bits = reinterpret_cast<__m512i>(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(floats, floats, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16(result));
  }
#elif defined(__AVX2__)
  static Floats read(const void* from) {
    const __m128i halves = _mm_loadu_si128(static_cast<const __m128i*>(from));
    return reinterpret_cast<Floats>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  static void write(void* to, Floats v) {
    const auto floats = reinterpret_cast<__m256>(v);
    const auto bits = reinterpret_cast<__m256i>(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
    const auto nan = reinterpret_cast<__m256i>(_mm256_cmp_ps(floats, floats, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
    const __m256i packed = _mm256_packus_epi32(result, result);  // within each half
    _mm_storeu_si128(static_cast<__m128i*>(to),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }
#else
  static Floats read(const void* from) {
    const Words words = __builtin_convertvector(load<Halves>(from), Words) << 16;
    return reinterpret_cast<Floats>(words);
  }
  static void write(void* to, Floats v) {
    const Words bits = reinterpret_cast<Words>(v);
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Mask nan = v != v;
    const Words result = reinterpret_cast<Words>(nan) & 0x7fc0;
    store(to, __builtin_convertvector(result | (rounded & ~reinterpret_cast<Words>(nan)), Halves));
  }
#endif
};

struct AsFp16 {
  static constexpr int kBytes = 2;
#if defined(__AVX512F__)
  static Floats read(const void* from) {
    return reinterpret_cast<Floats>(
        _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from))));
  }
  static void write(void* to, Floats v) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtps_ph(reinterpret_cast<__m512>(v), 0));
  }
#elif defined(__F16C__)
  static Floats read(const void* from) {
    return reinterpret_cast<Floats>(
        _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from))));
  }
  static void write(void* to, Floats v) {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_cvtps_ph(reinterpret_cast<__m256>(v), 0));
  }
#else
  static Floats read(const void* from) {
    Fp16 in[kWidth];
    __builtin_memcpy(in, from, sizeof in);
    Floats v = {};
    for (int i = 0; i < kWidth; ++i) v[i] = to_float(in[i]);
    return v;
  }
  static void write(void* to, Floats v) {
    Fp16 out[kWidth];
    for (int i = 0; i < kWidth; ++i) out[i] = to_fp16(v[i]);
    __builtin_memcpy(to, out, sizeof out);
  }
#endif
};

// kInputs and kOutputs 0: as many as there are.
template <typename As, bool kAvg, int kInputs, int kOutputs>
int64_t add_vectors(const ReduceArguments& a) {
  const int inputs = kInputs != 0 ? kInputs : a.input_count;
  const int outputs = kOutputs != 0 ? kOutputs : a.output_count;
  const float ranks = static_cast<float>(a.input_count);
  const int64_t whole = a.count / kWidth * kWidth;
  for (int64_t i = 0; i < whole; i += kWidth) {
    const int64_t at = i * As::kBytes;
    Floats sum = As::read(a.inputs[0] + at);
    for (int k = 1; k < inputs; ++k) sum = sum + As::read(a.inputs[k] + at);
    if constexpr (kAvg) sum = sum / ranks;
    for (int k = 0; k < outputs; ++k) As::write(a.outputs[k] + at, sum);
  }
  return whole;
}

template <typename As, bool kAvg>
int64_t add_vectors(const ReduceArguments& a) {
  if (a.input_count == 2 && a.output_count == 1) return add_vectors<As, kAvg, 2, 1>(a);
  if (a.input_count == 2 && a.output_count == 2) return add_vectors<As, kAvg, 2, 2>(a);
  if (a.input_count == 4 && a.output_count == 4) return add_vectors<As, kAvg, 4, 4>(a);
  return add_vectors<As, kAvg, 0, 0>(a);
}

// ---- dispatch ----

template <typename T>
void reduce_type(const ReduceArguments& a) {
  constexpr bool kFloating =
      __is_same(T, float) || __is_same(T, double) || __is_same(T, Bf16) || __is_same(T, Fp16);
  switch (a.kind) {
    case ReduceKind::kSum:
      return reduce_blocks<ReduceKind::kSum, T>(a, a.begin);
    case ReduceKind::kAvg:
      if constexpr (kFloating) return reduce_blocks<ReduceKind::kAvg, T>(a, a.begin);
      return;
    case ReduceKind::kProduct:
      return reduce_blocks<ReduceKind::kProduct, T>(a, a.begin);
    case ReduceKind::kMin:
      return reduce_blocks<ReduceKind::kMin, T>(a, a.begin);
    case ReduceKind::kMax:
      return reduce_blocks<ReduceKind::kMax, T>(a, a.begin);
    case ReduceKind::kBitAnd:
      if constexpr (!kFloating) return reduce_blocks<ReduceKind::kBitAnd, T>(a, a.begin);
      return;
    case ReduceKind::kBitOr:
      if constexpr (!kFloating) return reduce_blocks<ReduceKind::kBitOr, T>(a, a.begin);
      return;
    case ReduceKind::kBitXor:
      if constexpr (!kFloating) return reduce_blocks<ReduceKind::kBitXor, T>(a, a.begin);
      return;
  }
}

template <typename As>
int64_t add_as(const ReduceArguments& a) {
  if (a.kind == ReduceKind::kSum) return add_vectors<As, false>(a);
  if (a.kind == ReduceKind::kAvg) return add_vectors<As, true>(a);
  return 0;
}

}  // namespace

void reduce(ReduceArguments a) {
  switch (a.type) {
    case ElementType::kFloat:
      a.begin = add_as<AsFloat>(a);
      return reduce_type<float>(a);
    case ElementType::kDouble:
      return reduce_type<double>(a);
    case ElementType::kHalf:
      a.begin = add_as<AsFp16>(a);
      return reduce_type<Fp16>(a);
    case ElementType::kBFloat16:
      a.begin = add_as<AsBf16>(a);
      return reduce_type<Bf16>(a);
    case ElementType::kInt8:
      return reduce_type<int8_t>(a);
    case ElementType::kInt16:
      return reduce_type<int16_t>(a);
    case ElementType::kInt32:
      return reduce_type<int32_t>(a);
    case ElementType::kInt64:
      return reduce_type<int64_t>(a);
    case ElementType::kUInt8:
      return reduce_type<uint8_t>(a);
    case ElementType::kBool:
      return reduce_type<Bool>(a);
  }
}

}  // namespace lockstep::LOCKSTEP_ISA
