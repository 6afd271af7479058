#include "lockstep/comm/forked_rank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

#include "lockstep/core/env.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

int thread_count() {
  std::error_code ignored;
  return static_cast<int>(
      std::distance(fs::directory_iterator("/proc/self/task", ignored), fs::directory_iterator()));
}

bool uses_device() {
  std::error_code ignored;
  return std::any_of(fs::directory_iterator("/proc/self/fd", ignored), fs::directory_iterator(),
                     [](const fs::directory_entry& fd) {
                       std::error_code gone;
                       return fs::read_symlink(fd.path(), gone).string().starts_with("/dev/nvidia");
                     });
}

// A fork has the same memory there, and not a copy.
bool shares_memory() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {  // "7f0c-7f1c rw-s ..."
    const size_t space = line.find(' ');
    if (space != std::string::npos && line.substr(space + 1, 4).ends_with('s')) return true;
  }
  return false;
}

}  // namespace

bool can_fork_ranks() {
  if (kSanitized) return false;
  const EnvLookup env = process_env();
  for (const char* const name :
       {"LD_PRELOAD", "OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"})
    if (env(name)) return false;
  return thread_count() == 1 && !uses_device() && !shares_memory();
}

void begin_forked_rank() {
  const auto threads = parse_int(process_env()("OMP_NUM_THREADS").value_or(""), 1);
  if (threads && *threads != at::get_num_threads()) at::set_num_threads(static_cast<int>(*threads));
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(c10::default_rng_seed_val);
}

}  // namespace lockstep::inline v0
