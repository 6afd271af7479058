// Which ranks keep copies of which ranks' states: where there are several hosts, ranks of other
// hosts, so that a host may be lost. Pure. Not a public header.
#pragma once

#include <vector>

namespace lockstep::inline v0::recover {

// The rank that keeps the replica of `rank`'s state. With several hosts of `local` ranks each it is
// on another host; where hosts have unequal numbers of ranks, of which `local` is the largest, it
// is on another host for most ranks. Every rank keeps one other rank's replica (replicated_rank()),
// and its own where it is alone.
int replica_holder(int rank, int size, int local);
int replicated_rank(int rank, int size, int local);

// For states of which several ranks keep copies: both of them, and the neighbours in the ring of
// ranks where both are the same. The ranks that keep the copies of `rank`'s state are those whose
// copies it keeps. At least two ranks among three or more, none where it is alone.
std::vector<int> replica_holders(int rank, int size, int local);

}  // namespace lockstep::inline v0::recover
