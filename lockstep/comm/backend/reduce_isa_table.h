// The interface between reduce_kernels.cpp and the kernels that are compiled for several
// instruction sets.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace lockstep::inline v0 {

enum class ReduceKind : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };
enum class ElementType : uint8_t {
  kFloat,
  kDouble,
  kHalf,
  kBFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kBool,
};

// Plain pointers and numbers: this crosses into files compiled for another instruction set.
struct ReduceArguments {
  unsigned char* const* outputs;
  const unsigned char* const* inputs;
  int output_count;
  int input_count;
  int64_t count;
  int64_t begin;  // elements before it are done
  ElementType type;
  ReduceKind kind;
};

namespace isa_baseline {
void reduce(ReduceArguments arguments);
}
#if defined(__x86_64__)
namespace isa_avx2 {  // with F16C
void reduce(ReduceArguments arguments);
}
namespace isa_avx512 {  // F, BW, VL, with F16C
void reduce(ReduceArguments arguments);
}
#elif defined(__aarch64__)
namespace isa_neon {  // every processor has it; with the conversions of float16
void reduce(ReduceArguments arguments);
}
#endif

}  // namespace lockstep::inline v0
