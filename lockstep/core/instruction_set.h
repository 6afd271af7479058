// The processor instructions that Lockstep's own kernels may use.
#pragma once

#include "lockstep/core/env.h"

namespace lockstep::inline v0 {

enum class InstructionSet { kDefault, kAvx2, kAvx512 };

// The newest set that kernels may use, if the processor has it: LOCKSTEP_CPU_CAPABILITY, with the
// values of libtorch's ATEN_CPU_CAPABILITY: default (the architecture's baseline), avx2, avx512.
// kAvx512 where it is unset.
// Throws: InvalidArgument for another value.
InstructionSet instruction_set_limit(const EnvLookup& env);

}  // namespace lockstep::inline v0
