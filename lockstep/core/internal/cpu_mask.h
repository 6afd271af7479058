// CpuMask: processors in the form of sched_setaffinity(2), for any number of them.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lockstep::inline v0 {

class CpuMask {
 public:
  // get() is nullptr where there are none.
  explicit CpuMask(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    const int count = *std::max_element(cpus.begin(), cpus.end()) + 1;
    size_ = CPU_ALLOC_SIZE(count);
    set_ = CPU_ALLOC(count);
    CPU_ZERO_S(size_, set_);
    for (const int cpu : cpus) CPU_SET_S(cpu, size_, set_);
  }
  ~CpuMask() {
    if (set_ != nullptr) CPU_FREE(set_);
  }
  CpuMask(const CpuMask&) = delete;
  CpuMask& operator=(const CpuMask&) = delete;
  const cpu_set_t* get() const { return set_; }
  size_t size() const { return size_; }

 private:
  cpu_set_t* set_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lockstep::inline v0
