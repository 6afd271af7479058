// How many processors this process may use.
#pragma once

#include <vector>

namespace lockstep {

// Processors of sched_getaffinity(2), ascending.
std::vector<int> allowed_cpus();

// allowed_cpus().size(), lowered to the cgroup's CPU quota (v2 or v1), at least 1.
int usable_cpu_count();

// All threads of this process, and those that they start, run on these processors from now on; none: as before. A wish:
// what the system does not allow is left as it is.
void move_threads_to(const std::vector<int>& cpus);

}  // namespace lockstep
