#include "lockstep/core/cpus.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include "lockstep/core/control_groups.h"
#include "lockstep/core/env.h"
#include "lockstep/core/internal/cpu_mask.h"

namespace lockstep::inline v0 {
namespace {

constexpr int kMostCpus = 1 << 20;

namespace fs = std::filesystem;

// In processors; 0 where the group has none.
double quota_of(const ControlGroup& group) {
  std::string quota;
  double period = 0;
  if (group.first_version) std::ifstream(group.folder / "cpu.cfs_period_us") >> period;
  std::ifstream file(group.folder / (group.first_version ? "cpu.cfs_quota_us" : "cpu.max"));
  file >> quota;
  if (!group.first_version) file >> period;
  const auto value = parse_double(quota);  // "max" is no number, and v1 has -1
  return value && *value > 0 && period > 0 ? *value / period : 0;
}

int lowered_to_quota(int cpus, const fs::path& root) {
  double count = cpus;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    const double quota = quota_of(group);
    if (quota > 0) count = std::min(count, std::ceil(quota));
  }
  return std::max(1, static_cast<int>(count));
}

// "0-3,7" has 5; 0 for what is no list.
int count_in_list(const std::string& list) {
  int count = 0;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const auto first = parse_int(part.substr(0, dash), 0, kMostCpus);
    const auto last =
        dash == std::string::npos ? first : parse_int(part.substr(dash + 1), 0, kMostCpus);
    if (!first || !last || *last < *first) return 0;
    count += static_cast<int>(*last - *first + 1);
  }
  return count;
}

}  // namespace

std::vector<int> allowed_cpus() {
  // A kernel with more processors than the mask holds returns EINVAL: double the mask until it
  // fits.
  for (int count = 1024; count <= kMostCpus; count *= 2) {
    cpu_set_t* set = CPU_ALLOC(count);
    const size_t size = CPU_ALLOC_SIZE(count);
    std::vector<int> cpus;
    const bool ok = ::sched_getaffinity(0, size, set) == 0;
    for (int cpu = 0; ok && cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, size, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (ok) return cpus;
  }
  return {0};
}

void move_threads_to(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  const CpuMask mask(cpus);
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    if (const auto id = parse_int(task.path().filename().string(), 1))
      ::sched_setaffinity(static_cast<pid_t>(*id), mask.size(), mask.get());
  }
}

int usable_cpu_count() {
  return lowered_to_quota(static_cast<int>(allowed_cpus().size()), "/");
}

int host_cpu_count(const fs::path& root) {
  auto cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  for (const ControlGroup& group : control_groups("cpuset", root)) {
    std::string list;
    std::ifstream(group.folder /
                  (group.first_version ? "cpuset.effective_cpus" : "cpuset.cpus.effective")) >>
        list;
    if (const int count = count_in_list(list); count > 0) cpus = std::min(cpus, count);
  }
  return lowered_to_quota(cpus, root);
}

}  // namespace lockstep::inline v0
