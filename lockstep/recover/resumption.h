// Resumption: from where every rank stands after a failure to how the run goes on. Pure. Not a
// public header.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::recover {

// Where a rank stands.
struct Standing {
  // It holds the state of training: it was there before, and is no process that has just begun.
  bool whole = false;
  int64_t step = 0;        // of the run, that it has done
  bool agreeing = false;   // it was in the agreement of the step after those, gradients complete
  bool has_copies = true;  // it keeps its neighbours' states of that step
  bool has_own = false;    // not whole, but it has what it has alone: the run had hardly begun
};

struct Resumption {
  bool anew = false;  // nobody holds the state: the run begins
  int64_t step = 0;   // the next step to be done is this one, counted from 0
  int source = -1;    // the rank that newcomers get the state of training from
  struct Newcomer {
    int rank = 0;
    int keeper = 0;  // the rank that keeps a copy of what it had alone; itself: it has that

    bool operator==(const Newcomer&) const = default;
  };
  std::vector<Newcomer> newcomers = {};
  // Ranks that complete the update of step `step` - 1 by themselves: others had agreed on it and
  // done it, so that all gradients were complete.
  std::vector<int> behind = {};
};

// The ranks that keep a copy of what rank `rank` has alone: its neighbours in the ring of ranks.
std::vector<int> keepers_of(int rank, int size);

// By rank; equal input gives all ranks the same, the error included. Throws PeerLost where what a
// rank had alone is lost, since its keepers died with it; Mismatch where ranks stand so far apart
// that they cannot have taken the same steps.
Resumption decide_resumption(std::span<const Standing> ranks);

}  // namespace lockstep::recover
