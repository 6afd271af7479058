#include "lockstep/comm/internal/group_plan.h"

#include <algorithm>

namespace lockstep::inline v0 {

std::vector<int> members_of(std::span<const GroupWish> wishes, int color) {
  std::vector<int> members;
  if (color < 0) return members;
  for (size_t r = 0; r < wishes.size(); ++r) {
    if (wishes[r].color == color) members.push_back(static_cast<int>(r));
  }
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return wishes[a].key < wishes[b].key; });
  return members;
}

Topology topology_of_group(std::span<const GroupWish> wishes, std::span<const int> members,
                           int rank) {
  const int mine = wishes[rank].node;
  Topology topology{0, static_cast<int>(members.size()), 0, 0, 0};
  std::vector<int> nodes;
  bool before = true;
  for (const int member : members) {
    if (member == rank) {
      before = false;
    } else if (before) {
      ++topology.rank;
    }
    const int node = wishes[member].node;
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
    if (node != mine) continue;
    ++topology.local_size;
    if (before && member != rank) ++topology.local_rank;
  }
  topology.node_rank =
      static_cast<int>(std::find(nodes.begin(), nodes.end(), mine) - nodes.begin());
  return topology;
}

}  // namespace lockstep::inline v0
