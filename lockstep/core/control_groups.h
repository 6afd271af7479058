// The control groups that limit this process (cgroups(7)).
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace lockstep::inline v0 {

struct ControlGroup {
  std::filesystem::path folder;
  bool first_version = false;  // whose files have other names
};

// This process's groups, each followed by its parents, whose limits hold too: of version 2, and of
// version 1's `controller` ("memory", "cpu", "cpuset"). The last parent is the controller's own
// folder, which a container may see as its group. Folders may not exist. `root`: the parent of
// /proc and /sys, for tests.
std::vector<ControlGroup> control_groups(std::string_view controller,
                                         const std::filesystem::path& root = "/");

}  // namespace lockstep::inline v0
