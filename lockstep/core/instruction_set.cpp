#include "lockstep/core/instruction_set.h"

#include <sys/utsname.h>

#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

bool has(InstructionSet set) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (set == InstructionSet::kAvx2) return avx2;
  if (set == InstructionSet::kAvx512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  (void)set;
  return true;
}

}  // namespace

std::string_view name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::kDefault:
      return "default";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
    case InstructionSet::kNeon:
      return "neon";
  }
  return "";
}

std::span<const InstructionSet> instruction_sets() {
#if defined(__x86_64__)
  static constexpr InstructionSet kSets[] = {InstructionSet::kDefault, InstructionSet::kAvx2,
                                             InstructionSet::kAvx512};
#elif defined(__aarch64__)
  static constexpr InstructionSet kSets[] = {InstructionSet::kDefault, InstructionSet::kNeon};
#else
  static constexpr InstructionSet kSets[] = {InstructionSet::kDefault};
#endif
  return kSets;
}

InstructionSet instruction_set_limit(const EnvLookup& env) {
  const auto value = env("LOCKSTEP_CPU_CAPABILITY");
  if (!value) return instruction_sets().back();
  std::string names;
  for (const InstructionSet set : instruction_sets()) {
    if (*value == name_of(set)) return set;
    names += std::string(name_of(set)) + ", ";
  }
  // The host, since a launcher may have sent the variable to hosts of another architecture.
  utsname host{};
  ::uname(&host);
  throw InvalidArgument("LOCKSTEP_CPU_CAPABILITY is '" + *value + "'; it is one of " + names +
                        "or unset on host " + host.nodename + ", whose processor is " +
                        host.machine);
}

InstructionSet instruction_set_used(const EnvLookup& env) {
  const InstructionSet limit = instruction_set_limit(env);
  InstructionSet best = InstructionSet::kDefault;
  for (const InstructionSet set : instruction_sets())
    if (set <= limit && has(set)) best = set;
  return best;
}

}  // namespace lockstep::inline v0
