#include "lockstep/core/control_groups.h"

#include <fstream>
#include <string>

namespace lockstep::inline v0 {
namespace {

namespace fs = std::filesystem;

void add_group(const fs::path& controller, const fs::path& group, bool first_version,
               std::vector<ControlGroup>& groups) {
  fs::path path = group.relative_path();
  while (true) {
    groups.push_back({path.empty() ? controller : controller / path, first_version});
    if (path.empty()) return;
    path = path.parent_path();
  }
}

}  // namespace

std::vector<ControlGroup> control_groups(std::string_view controller, const fs::path& root) {
  const fs::path all = root / "sys/fs/cgroup";
  std::vector<ControlGroup> groups;
  // "4:memory:/group", and "0::/group" for version 2.
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers =
        std::string(",").append(line, first + 1, second - first - 1) + ",";
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,") {
      add_group(all, group, false, groups);
      add_group(all / "unified", group, false, groups);
    } else if (controllers.find("," + std::string(controller) + ",") != std::string::npos) {
      add_group(all / controller, group, true, groups);
    }
  }
  return groups;
}

}  // namespace lockstep::inline v0
