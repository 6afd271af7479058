#include "lockstep/core/memory_settings.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/core/memory_limit.h"

namespace lockstep::inline v0 {
namespace {

struct Thresholds {
  int trim, map;
};
// Up to 1 GiB per process; blocks from 32 MiB (the maximum) are still returned.
constexpr Thresholds kKeep{.trim = 1 << 30, .map = 32 << 20};
// Gradients that ZeRO frees in its stages 2 and 3 are such blocks: keeping them took half as much
// memory again.
constexpr Thresholds kGiveBack{.trim = 64 << 20, .map = 4 << 20};
constexpr uint64_t kAmple = uint64_t{4} << 30;  // per process, in bytes
constexpr const char *kHugePages = "THP_MEM_ALLOC_ENABLE", *kTrimName = "MALLOC_TRIM_THRESHOLD_",
                     *kMapName = "MALLOC_MMAP_THRESHOLD_";

const Thresholds& thresholds(std::optional<uint64_t> allowed) {
  return allowed && *allowed < kAmple ? kGiveBack : kKeep;
}

}  // namespace

std::map<std::string, std::string> memory_variables(const EnvLookup& env,
                                                    std::optional<uint64_t> allowed) {
  const Thresholds& chosen = thresholds(allowed);
  std::map<std::string, std::string> variables = {{kHugePages, "1"},
                                                  {kTrimName, std::to_string(chosen.trim)},
                                                  {kMapName, std::to_string(chosen.map)}};
  std::erase_if(variables, [&](const auto& one) { return env(one.first).has_value(); });
  return variables;
}

std::optional<uint64_t> allowed_memory(int processes) {
  const auto limit = memory_limit();
  if (!limit) return std::nullopt;
  return limit->bytes / static_cast<uint64_t>(std::max(processes, 1));
}

void keep_freed_memory() {
  const EnvLookup env = process_env();
  constexpr int64_t kMost = 1 << 20;
  const auto told = parse_int(env("LOCAL_WORLD_SIZE").value_or("1"), 1, kMost);
  // The code that starts ranks reports errors.
  const auto processes = static_cast<int>(told.value_or(1));
  const auto allowed = allowed_memory(processes);
  const auto missing = memory_variables(env, allowed);
  const Thresholds& chosen = thresholds(allowed);
  // libtorch reads it at its first allocation; glibc has read it already.
  if (missing.contains(kHugePages)) ::setenv(kHugePages, "1", /*overwrite=*/0);
  if (missing.contains(kTrimName)) ::mallopt(M_TRIM_THRESHOLD, chosen.trim);
  if (missing.contains(kMapName)) ::mallopt(M_MMAP_THRESHOLD, chosen.map);
}

void return_freed_memory() noexcept {
  ::malloc_trim(0);
}

}  // namespace lockstep::inline v0
