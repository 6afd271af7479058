// The processors that this process may use.
#pragma once

#include <vector>

namespace lockstep::inline v0 {

// Processors of sched_getaffinity(2), ascending.
std::vector<int> allowed_cpus();

// allowed_cpus().size(), lowered to the cgroup's CPU quota (v2 or v1), at least 1.
int usable_cpu_count();

// Moves all threads of this process, and those that they start, to these processors; empty: no
// change. Best effort: disallowed moves are ignored.
void move_threads_to(const std::vector<int>& cpus);

}  // namespace lockstep::inline v0
