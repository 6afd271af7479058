#include "lockstep/core/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "lockstep/core/env.h"
#include "lockstep/core/internal/cpu_mask.h"

namespace lockstep::inline v0 {
namespace {

// The number of processors of the cgroup's quota; 0 if there is none.
double cgroup_quota() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period) {
    const auto value = parse_double(quota);
    return value && period > 0 ? *value / period : 0;
  }
  double v1_quota = 0, v1_period = 0;
  if (std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> v1_quota && v1_quota > 0 &&
      std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> v1_period && v1_period > 0) {
    return v1_quota / v1_period;
  }
  return 0;
}

}  // namespace

std::vector<int> allowed_cpus() {
  // A kernel with more processors than the mask holds returns EINVAL: double the mask until it
  // fits.
  for (int count = 1024; count <= (1 << 20); count *= 2) {
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
  const int allowed = static_cast<int>(allowed_cpus().size());
  const double quota = cgroup_quota();
  if (quota <= 0) return std::max(1, allowed);
  return std::clamp(static_cast<int>(std::ceil(quota)), 1, std::max(1, allowed));
}

}  // namespace lockstep::inline v0
