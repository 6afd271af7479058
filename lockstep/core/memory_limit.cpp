#include "lockstep/core/memory_limit.h"

#include <sys/stat.h>

#include <fstream>
#include <utility>

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

struct Files {
  const char *limit, *used;
};

// Visits the group and its parents up to the controller's own directory, which a container may see
// as its own group.
void look(const fs::path& controller, const fs::path& group, const Files& files,
          std::optional<MemoryLimit>& least) {
  fs::path path = group.relative_path();
  while (true) {
    const fs::path folder = path.empty() ? controller : controller / path;
    const auto limit = number_in(folder / files.limit);
    if (limit && (!least || *limit < least->bytes))
      least = {.bytes = *limit,
               .used = number_in(folder / files.used),
               .group = folder.string(),
               .id = inode(folder)};
    if (path.empty()) return;
    path = path.parent_path();
  }
}

}  // namespace

std::optional<MemoryLimit> memory_limit(const fs::path& root) {
  constexpr Files kV2{"memory.max", "memory.current"};
  constexpr Files kV1{"memory.limit_in_bytes", "memory.usage_in_bytes"};
  std::optional<MemoryLimit> least;
  // "4:memory:/group", and "0::/group" for v2.
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers =
        std::string(",").append(line, first + 1, second - first - 1) + ",";
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,") {
      look(root / "sys/fs/cgroup", group, kV2, least);
      look(root / "sys/fs/cgroup/unified", group, kV2, least);
    } else if (controllers.find(",memory,") != std::string::npos) {
      look(root / "sys/fs/cgroup/memory", group, kV1, least);
    }
  }
  return least;
}

}  // namespace lockstep::inline v0
