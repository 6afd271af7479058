#include "lockstep/core/instruction_set.h"

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

InstructionSet instruction_set_limit(const EnvLookup& env) {
  const std::string value = env("LOCKSTEP_CPU_CAPABILITY").value_or("avx512");
  if (value == "default") return InstructionSet::kDefault;
  if (value == "avx2") return InstructionSet::kAvx2;
  if (value == "avx512") return InstructionSet::kAvx512;
  throw InvalidArgument("LOCKSTEP_CPU_CAPABILITY is '" + value +
                        "'; it is one of default, avx2, avx512, or unset");
}

}  // namespace lockstep::inline v0
