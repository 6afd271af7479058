// Rollback: decides from the existing copies of the ranks' states to which step all go back. Pure.
// Not a public header.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::inline v0::recover {

// The states in a rank's memory after a failure, by step; -1 for none.
struct KeptStates {
  std::array<int64_t, 2> own{-1, -1};   // its own state of these steps
  std::array<int64_t, 2> copy{-1, -1};  // and of the rank that it replicates
  bool begun = false;  // all ranks had their first copies, so it may have taken steps since
};

struct Rollback {
  bool anew = false;                // no rank has a state to go back to: the run starts anew
  int64_t step = 0;                 // the step to which all go back
  std::vector<int> newcomers = {};  // ranks that get their state from their replica holders
};

// `ranks` by rank. Equal input gives all ranks the same result or error. Throws PeerLost where the
// state of a rank is lost, since its replica holder died with it.
Rollback decide_rollback(std::span<const KeptStates> ranks, int local);

}  // namespace lockstep::inline v0::recover
