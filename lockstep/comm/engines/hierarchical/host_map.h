// HostMap: which ranks of a group share a host. Pure.
#pragma once

#include <span>
#include <vector>

namespace lockstep::inline v0::hierarchical {

struct HostMap {
  int rank = 0;
  std::vector<std::vector<int>> hosts;  // ranks in ascending order; hosts by their lowest rank
  std::vector<int> host_of;             // by rank
  std::vector<int> index_of;            // by rank: its place on its host
  bool equal = true;                    // every host has the same number of ranks
  bool contiguous = true;  // the ranks ascend when the hosts are read one after another

  int size() const { return static_cast<int>(host_of.size()); }
  int host() const { return host_of[rank]; }
  int index() const { return index_of[rank]; }
  const std::vector<int>& mates() const { return hosts[host()]; }  // this rank among them
  int mate_count() const { return static_cast<int>(mates().size()); }
  int host_count() const { return static_cast<int>(hosts.size()); }

  // The rank with place `index` on every host, in the order of the hosts, in which sums are added.
  // Requires: `equal`, or index 0.
  std::vector<int> column(int index) const;
};

// `node_of[r]`: a number that is equal for ranks of one host and differs between hosts.
HostMap make_host_map(std::span<const int> node_of, int rank);

}  // namespace lockstep::inline v0::hierarchical
