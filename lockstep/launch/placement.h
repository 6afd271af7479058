// The processors and the number of threads of a rank. Pure.
#pragma once

#include <vector>

namespace lockstep::inline v0::launch {

// The rank's contiguous share of `cpus` (ascending), as even as possible; empty, meaning no
// pinning, when there are fewer processors than ranks or only one rank.
std::vector<int> cpu_share(const std::vector<int>& cpus, int ranks, int rank);

// Threads for each rank: processors / ranks, at least 1.
int threads_per_rank(int cpus, int ranks);

}  // namespace lockstep::inline v0::launch
