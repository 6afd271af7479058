// The processor instructions that Lockstep's own kernels may use.
#pragma once

#include <span>
#include <string_view>

#include "lockstep/core/env.h"

namespace lockstep::inline v0 {

// kAvx2 comes with FMA and F16C; kNeon, which every 64-bit ARM has, with its fused multiply-add and
// conversions. Kernels give the same bits with all three. kDefault: plain code, whose products and
// sums are rounded one by one.
enum class InstructionSet { kDefault, kAvx2, kAvx512, kNeon };

// As LOCKSTEP_CPU_CAPABILITY names it.
std::string_view name_of(InstructionSet set);

// Those of this program's architecture, the plainest first: default, avx2, avx512 on x86-64;
// default, neon on 64-bit ARM.
std::span<const InstructionSet> instruction_sets();

// The newest set that kernels may use, if the processor has it: LOCKSTEP_CPU_CAPABILITY, one of
// instruction_sets() by its name, which are libtorch's for ATEN_CPU_CAPABILITY on x86-64. The last
// of them where it is unset.
// Throws: InvalidArgument for another value, with the host and its processor's architecture.
InstructionSet instruction_set_limit(const EnvLookup& env);

// The set that kernels do use: the newest that this processor has, within the limit.
// Throws: as instruction_set_limit().
InstructionSet instruction_set_used(const EnvLookup& env);

}  // namespace lockstep::inline v0
