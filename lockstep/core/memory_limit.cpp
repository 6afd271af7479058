#include "lockstep/core/memory_limit.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "lockstep/core/control_groups.h"

namespace lockstep::inline v0 {
namespace {

namespace fs = std::filesystem;

// nullopt for "max", and for v1's huge number, which means the same.
std::optional<uint64_t> number_in(const fs::path& file) {
  constexpr uint64_t kNone = uint64_t{1} << 60;
  uint64_t value = 0;
  if (!(std::ifstream(file) >> value) || value >= kNone) return std::nullopt;
  return value;
}

// A name is not enough, because every container's group may be "/".
uint64_t inode(const fs::path& folder) {
  struct stat found{};
  return ::stat(folder.c_str(), &found) == 0 ? found.st_ino : 0;
}

}  // namespace

std::optional<MemoryLimit> memory_limit(const fs::path& root) {
  std::optional<MemoryLimit> least;
  for (const ControlGroup& group : control_groups("memory", root)) {
    const bool v1 = group.first_version;
    const auto limit = number_in(group.folder / (v1 ? "memory.limit_in_bytes" : "memory.max"));
    if (!limit || (least && *limit >= least->bytes)) continue;
    least = {.bytes = *limit,
             .used = number_in(group.folder / (v1 ? "memory.usage_in_bytes" : "memory.current")),
             .group = group.folder.string(),
             .id = inode(group.folder)};
  }
  return least;
}

uint64_t host_memory_bytes() {
  const auto all = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                   static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto limit = memory_limit();
  return limit ? std::min(all, limit->bytes) : all;
}

}  // namespace lockstep::inline v0
