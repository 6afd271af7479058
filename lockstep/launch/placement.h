// The processors and the number of threads of a rank. Pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/binding.h"

namespace lockstep::inline v0::launch {

// The rank's contiguous share of `cpus` (ascending), as even as possible; empty, meaning no
// pinning, when there are fewer processors than ranks or only one rank.
std::vector<int> cpu_share(const std::vector<int>& cpus, int ranks, int rank);

// Threads for each rank: processors / ranks, at least 1.
int threads_per_rank(int cpus, int ranks);

// A processor (hardware thread) and the units that it belongs to. Two processors with the same
// number of a unit share that unit.
struct Processor {
  int cpu = 0;
  int core = 0;
  int numa = 0;
  int socket = 0;

  bool operator==(const Processor&) const = default;
};

struct RankCpus {
  std::vector<int> cpus;  // ascending
  int threads = 1;        // that fit there: one for each core, or for each processor of a hwthread

  bool operator==(const RankCpus&) const = default;
};

// The processors of each of `ranks` ranks, of those that are allowed. `binding.given` is true.
// Throws: InvalidArgument, one line, where the ranks need more cores than there are.
std::vector<RankCpus> bound_cpus(const std::vector<Processor>& allowed, const Binding& binding,
                                 int ranks);

// The number of units among these processors: 2 sockets.
int unit_count(const std::vector<Processor>& processors, CpuUnit unit);

// "0-3,8" for 0, 1, 2, 3, 8 (ascending), as taskset and Linux write it.
std::string cpu_list(const std::vector<int>& cpus);

}  // namespace lockstep::inline v0::launch
