#include "lockstep/comm/engines/hierarchical/host_map.h"

#include <algorithm>

namespace lockstep::inline v0::hierarchical {

HostMap make_host_map(std::span<const int> node_of, int rank) {
  HostMap map;
  map.rank = rank;
  std::vector<int> nodes;  // the nodes of map.hosts
  for (size_t r = 0; r < node_of.size(); ++r) {
    auto it = std::find(nodes.begin(), nodes.end(), node_of[r]);
    if (it == nodes.end()) {
      it = nodes.insert(nodes.end(), node_of[r]);
      map.hosts.emplace_back();
    }
    const auto host = static_cast<int>(it - nodes.begin());
    map.host_of.push_back(host);
    map.index_of.push_back(static_cast<int>(map.hosts[host].size()));
    map.hosts[host].push_back(static_cast<int>(r));
  }
  map.contiguous = std::is_sorted(map.host_of.begin(), map.host_of.end());
  map.equal = std::all_of(map.hosts.begin(), map.hosts.end(), [&](const auto& host) {
    return host.size() == map.hosts.front().size();
  });
  return map;
}

std::vector<int> HostMap::column(int index) const {
  std::vector<int> ranks;
  for (const std::vector<int>& host : hosts) ranks.push_back(host[index]);
  return ranks;
}

}  // namespace lockstep::inline v0::hierarchical
