// The reduction kernels' body, compiled once for every instruction set (reduce_isa_*.cpp), each
// time in the namespace LOCKSTEP_ISA.
//
// Nothing here may be an inline function or template that other files instantiate too: the linker
// would keep one copy for all, perhaps the one for a newer processor. The file therefore uses no
// standard library, and everything is in an anonymous namespace. NaN is tested by comparing a value
// with itself, GCC's vector types need typedef, and the body is compiled once per file; hence the
// suppressed checks:
// NOLINTBEGIN(misc-redundant-expression, modernize-use-using, misc-definitions-in-headers)

#ifndef LOCKSTEP_ISA
#error "include this from reduce_isa_*.cpp only"
#endif

#include <stddef.h>
#include <stdint.h>

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(LOCKSTEP_NEON)
#include <arm_neon.h>
#endif

#include "lockstep/comm/backend/reduce_isa_table.h"

namespace lockstep::inline v0::LOCKSTEP_ISA {
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

// How elements of a type are added: `Value` holds kCount of them as floats.
struct AsFloat {
  static constexpr int kBytes = 4;
  static constexpr int kCount = kWidth;
  using Value = Floats;
  static Value read(const void* from) { return load<Floats>(from); }
  static Value add(Value a, Value b) { return a + b; }
  static Value divide(Value a, float by) { return a / by; }
  static void write(void* to, Value v) { store(to, v); }
};

// Two elements lie in every 32-bit lane: a bfloat16 is the upper half of a float, so they are taken
// apart by a shift and a mask, without any widening or packing.
struct AsBf16 {
  static constexpr int kBytes = 2;
  static constexpr int kCount = 2 * kWidth;
  struct Value {
    Floats low;
    Floats high;
  };
  static Value read(const void* from) {
    const Words pairs = load<Words>(from);
    return {reinterpret_cast<Floats>(pairs << 16), reinterpret_cast<Floats>(pairs & 0xffff0000)};
  }
  static Value add(Value a, Value b) { return {a.low + b.low, a.high + b.high}; }
  static Value divide(Value a, float by) { return {a.low / by, a.high / by}; }
  static Words rounded(Floats v) {
    const Words bits = reinterpret_cast<Words>(v);
    const Words nan = Words{} + 0x7fc00000;
    return v != v ? nan : bits + 0x7fff + ((bits >> 16) & 1);
  }
  static void write(void* to, Value v) {
    store(to, (rounded(v.low) >> 16) | (rounded(v.high) & 0xffff0000));
  }
};
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first of a pair is the low half");

struct AsFp16 {
  static constexpr int kBytes = 2;
#if defined(__F16C__)
#if defined(__AVX512F__)
  static constexpr int kHalf = 16;
  static Floats widen(const void* from) {
    return reinterpret_cast<Floats>(
        _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from))));
  }
  static void narrow(void* to, Floats v) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtps_ph(reinterpret_cast<__m512>(v), 0));
  }
#else
  static constexpr int kHalf = 8;
  static Floats widen(const void* from) {
    return reinterpret_cast<Floats>(
        _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from))));
  }
  static void narrow(void* to, Floats v) {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_cvtps_ph(reinterpret_cast<__m256>(v), 0));
  }
#endif
#elif defined(LOCKSTEP_NEON)
  static constexpr int kHalf = 4;
  static Floats widen(const void* from) {
    const uint16x4_t halves = load<uint16x4_t>(from);
    return reinterpret_cast<Floats>(vcvt_f32_f16(vreinterpret_f16_u16(halves)));
  }
  static void narrow(void* to, Floats v) {
    store(to, vreinterpret_u16_f16(vcvt_f16_f32(reinterpret_cast<float32x4_t>(v))));
  }
#else
  static constexpr int kHalf = kWidth;
  static Floats widen(const void* from) {
    Fp16 in[kWidth];
    __builtin_memcpy(in, from, sizeof in);
    Floats v = {};
    for (int i = 0; i < kWidth; ++i) v[i] = to_float(in[i]);
    return v;
  }
  static void narrow(void* to, Floats v) {
    Fp16 out[kWidth];
    for (int i = 0; i < kWidth; ++i) out[i] = to_fp16(v[i]);
    __builtin_memcpy(to, out, sizeof out);
  }
#endif
  static constexpr int kCount = 2 * kHalf;
  struct Value {
    Floats first;
    Floats second;
  };
  static Value read(const void* from) {
    return {widen(from), widen(static_cast<const char*>(from) + kHalf * kBytes)};
  }
  static Value add(Value a, Value b) { return {a.first + b.first, a.second + b.second}; }
  static Value divide(Value a, float by) { return {a.first / by, a.second / by}; }
  static void write(void* to, Value v) {
    narrow(to, v.first);
    narrow(static_cast<char*>(to) + kHalf * kBytes, v.second);
  }
};

template <typename As, bool kAvg>
int64_t add_any(const ReduceArguments& a) {
  const int64_t whole = a.count / As::kCount * As::kCount * As::kBytes;
  for (int64_t at = 0; at < whole; at += As::kCount * As::kBytes) {
    typename As::Value sum = As::read(a.inputs[0] + at);
    for (int k = 1; k < a.input_count; ++k) sum = As::add(sum, As::read(a.inputs[k] + at));
    if constexpr (kAvg) sum = As::divide(sum, static_cast<float>(a.input_count));
    for (int k = 0; k < a.output_count; ++k) As::write(a.outputs[k] + at, sum);
  }
  return whole / As::kBytes;
}

// Far enough ahead that a peer's cache line has arrived when it is added. The 16-bit kernels need
// the prefetch: their window of instructions in flight holds too few loads. float32 is faster
// without it.
constexpr int64_t kAhead = 2048;

// The same for two inputs, with the pointers in registers: otherwise the compiler must assume that
// a store may change the pointers themselves.
template <typename As, bool kAvg, int kOutputs>
int64_t add_two(const ReduceArguments& a) {
  constexpr int64_t kStep = As::kCount * As::kBytes;
  const int64_t whole = a.count / As::kCount * kStep;
  const unsigned char* const left = a.inputs[0];
  const unsigned char* const right = a.inputs[1];
  unsigned char* const out = a.outputs[0];
  unsigned char* const also = a.outputs[kOutputs - 1];
  const auto step = [=](int64_t at) __attribute__((always_inline)) {
    typename As::Value sum = As::add(As::read(left + at), As::read(right + at));
    if constexpr (kAvg) sum = As::divide(sum, 2.0f);
    As::write(out + at, sum);
    if constexpr (kOutputs == 2) As::write(also + at, sum);
  };
  int64_t at = 0;
  if constexpr (As::kBytes == 2) {
    // Stops before the end: the next line is another rank's share.
    for (; at < whole - kAhead; at += kStep) {
      __builtin_prefetch(left + at + kAhead);
      __builtin_prefetch(right + at + kAhead);
      step(at);
    }
  }
  for (; at < whole; at += kStep) step(at);
  return whole / As::kBytes;
}

template <typename As, bool kAvg>
int64_t add_vectors(const ReduceArguments& a) {
  if (a.input_count == 2 && a.output_count == 1) return add_two<As, kAvg, 1>(a);
  if (a.input_count == 2 && a.output_count == 2) return add_two<As, kAvg, 2>(a);
  return add_any<As, kAvg>(a);
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

}  // namespace lockstep::inline v0::LOCKSTEP_ISA

// NOLINTEND(misc-redundant-expression, modernize-use-using, misc-definitions-in-headers)
