#include "lockstep/core/memory_settings.h"

#include <malloc.h>

#include <cstdlib>

namespace lockstep {
namespace {

// Up to 1 GiB a process; blocks from 32 MiB (the most there is) still come and go.
constexpr int kTrim = 1 << 30, kMap = 32 << 20;
constexpr const char *kHugePages = "THP_MEM_ALLOC_ENABLE", *kTrimName = "MALLOC_TRIM_THRESHOLD_",
                     *kMapName = "MALLOC_MMAP_THRESHOLD_";

}  // namespace

std::map<std::string, std::string> memory_variables(const EnvLookup& env) {
  std::map<std::string, std::string> variables = {
      {kHugePages, "1"}, {kTrimName, std::to_string(kTrim)}, {kMapName, std::to_string(kMap)}};
  std::erase_if(variables, [&](const auto& one) { return env(one.first).has_value(); });
  return variables;
}

void keep_freed_memory() {
  const auto missing = memory_variables(process_env());
  // libtorch looks when it allocates for the first time; glibc has looked already.
  if (missing.contains(kHugePages)) ::setenv(kHugePages, "1", /*overwrite=*/0);
  if (missing.contains(kTrimName)) ::mallopt(M_TRIM_THRESHOLD, kTrim);
  if (missing.contains(kMapName)) ::mallopt(M_MMAP_THRESHOLD, kMap);
}

}  // namespace lockstep
