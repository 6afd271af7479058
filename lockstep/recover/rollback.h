// Rollback: from which copies of the ranks' states are there to the step that all go back to. Pure. Not
// a public header.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::recover {

// What a rank has in memory after a failure; steps, -1 for none.
struct KeptStates {
  std::array<int64_t, 2> own{-1, -1};   // its own state of these
  std::array<int64_t, 2> copy{-1, -1};  // and its ward's
  bool begun = false;  // all ranks had their first copies; it may have taken steps since
};

struct Rollback {
  bool anew = false;                // nobody has a state to go back to: the run begins
  int64_t step = 0;                 // which all go back to
  std::vector<int> newcomers = {};  // ranks that get their state from their keepers
};

// The rank that keeps a copy of `rank`'s state: on another host where there are several, each with `local` ranks;
// where they have unequal numbers, of which `local` is the greatest, on another one for most. Every rank keeps one other's, its ward's; itself where it is alone.
int keeper_of(int rank, int size, int local);
int ward_of(int rank, int size, int local);

// By rank; equal input gives all ranks the same, the error included. Throws PeerLost where the state of a rank is
// lost, since its keeper died with it.
Rollback decide_rollback(std::span<const KeptStates> ranks, int local);

}  // namespace lockstep::recover
