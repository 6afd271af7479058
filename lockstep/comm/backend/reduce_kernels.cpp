#include "lockstep/comm/backend/reduce_kernels.h"

#include "lockstep/comm/backend/reduce_isa_table.h"
#include "lockstep/core/check.h"
#include "lockstep/core/instruction_set.h"

namespace lockstep::inline v0 {
namespace {

ElementType element_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ElementType::kFloat;
    case at::kDouble:
      return ElementType::kDouble;
    case at::kHalf:
      return ElementType::kHalf;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kChar:
      return ElementType::kInt8;
    case at::kShort:
      return ElementType::kInt16;
    case at::kInt:
      return ElementType::kInt32;
    case at::kLong:
      return ElementType::kInt64;
    case at::kByte:
      return ElementType::kUInt8;
    case at::kBool:
      return ElementType::kBool;
    default:
      LOCKSTEP_CHECK(false, "the dtype is one that collectives carry");
  }
}

ReduceKind reduce_kind(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ReduceKind::kSum;
    case ReduceOp::kAvg:
      return ReduceKind::kAvg;
    case ReduceOp::kProduct:
      return ReduceKind::kProduct;
    case ReduceOp::kMin:
      return ReduceKind::kMin;
    case ReduceOp::kMax:
      return ReduceKind::kMax;
    case ReduceOp::kBitAnd:
      return ReduceKind::kBitAnd;
    case ReduceOp::kBitOr:
      return ReduceKind::kBitOr;
    case ReduceOp::kBitXor:
      return ReduceKind::kBitXor;
  }
  LOCKSTEP_CHECK(false, "the reduction is one of types.h");
}

using Kernel = void (*)(ReduceArguments);

Kernel best_kernel() {
  [[maybe_unused]] const InstructionSet set = instruction_set_used(process_env());
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return isa_avx512::reduce;
  if (set == InstructionSet::kAvx2) return isa_avx2::reduce;
#elif defined(__aarch64__)
  if (set == InstructionSet::kNeon) return isa_neon::reduce;
#endif
  return isa_baseline::reduce;
}

}  // namespace

void reduce_buffers(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs,
                    int64_t count, at::ScalarType dtype, ReduceOp op) {
  LOCKSTEP_CHECK(is_valid_reduction(op, dtype), "the reduction is valid for the dtype");
  if (inputs.size() == 1 && outputs.size() == 1 && inputs[0] == outputs[0]) return;
  static const Kernel kKernel = best_kernel();
  kKernel({reinterpret_cast<unsigned char* const*>(outputs.data()),
           reinterpret_cast<const unsigned char* const*>(inputs.data()),
           static_cast<int>(outputs.size()), static_cast<int>(inputs.size()), count, 0,
           element_type(dtype), reduce_kind(op)});
}

}  // namespace lockstep::inline v0
