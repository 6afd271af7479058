// The processors that this process may use.
#pragma once

#include <filesystem>
#include <vector>

namespace lockstep::inline v0 {

// Processors of sched_getaffinity(2), ascending.
std::vector<int> allowed_cpus();

// allowed_cpus().size(), lowered to the CPU quota of this process's control groups (v2 or v1), at
// least 1.
int usable_cpu_count();

// The processors that processes of this host, or of this container, have together: those that are
// online, lowered to the control groups' sets and quota, at least 1. It is the same on all ranks of
// a host, also where each is bound to some of its processors. `root`: the parent of /proc and /sys,
// for tests.
int host_cpu_count(const std::filesystem::path& root = "/");

// Moves all threads of this process, and those that they start, to these processors; empty: no
// change. Best effort: disallowed moves are ignored.
void move_threads_to(const std::vector<int>& cpus);

}  // namespace lockstep::inline v0
