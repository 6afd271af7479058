// Decides the members of each group and their places from the requests of all ranks. Pure. Not a
// public header.
#pragma once

#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0 {

// The request of one rank of the parent communicator.
struct GroupWish {
  int color = 0;  // negative: no group
  int key = 0;
  int node = 0;  // the rank's host, in any numbering
};

// The ranks that asked for `color`, in order of key, then rank; empty if it is negative.
std::vector<int> members_of(std::span<const GroupWish> wishes, int color);

// The place of `rank`, one of `members`, in their group. Nodes are numbered in order of their first
// member.
Topology topology_of_group(std::span<const GroupWish> wishes, std::span<const int> members,
                           int rank);

}  // namespace lockstep::inline v0
