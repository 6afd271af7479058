#include "lockstep/launch/placement.h"

#include <algorithm>

namespace lockstep::inline v0::launch {

std::vector<int> cpu_share(const std::vector<int>& cpus, int ranks, int rank) {
  const auto count = static_cast<int>(cpus.size());
  if (ranks <= 1 || count < ranks) return {};
  // The first count % ranks ranks get one more.
  const int base = count / ranks, extra = count % ranks;
  const int begin = rank * base + std::min(rank, extra);
  const int size = base + (rank < extra ? 1 : 0);
  return {cpus.begin() + begin, cpus.begin() + begin + size};
}

int threads_per_rank(int cpus, int ranks) {
  return std::max(1, cpus / std::max(1, ranks));
}

}  // namespace lockstep::inline v0::launch
