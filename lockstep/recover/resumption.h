// Resumption: decides from every rank's progress after a failure how the run continues. Pure. Not a
// public header.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::inline v0::recover {

// The progress of a rank.
struct RankProgress {
  // It has the training state: it is a survivor and not a new process.
  bool whole = false;
  int64_t step = 0;        // completed steps of the run
  bool agreeing = false;   // it was agreeing on the next step, with complete gradients
  bool has_copies = true;  // it has its neighbours' states at that step
  bool has_own = false;    // not whole, but it has its own state: the run had hardly begun
  // Its place when all ranks were last at the same step: the numbers by which copies are kept. They
  // differ from the present ones where ranks have left since (Communicator::shrink()). -1 of 0:
  // there was no such moment.
  int former = -1;
  int former_size = 0;
  int first = -1;  // its number when the run began, by which people know it
  // Ranks on its host, which copies are not to be on alone; 1 where ranks may leave, since the
  // remaining ones get other neighbours.
  int local_size = 1;
};

struct Resumption {
  bool anew = false;  // no rank has the state: the run starts anew
  int64_t step = 0;   // the next step to do, counted from 0
  int source = -1;    // the rank from which newcomers get the training state
  struct Newcomer {
    int rank = 0;
    int holder = 0;  // the rank with a copy of its own state; itself if it has it

    bool operator==(const Newcomer&) const = default;
  };
  std::vector<Newcomer> newcomers = {};
  // Ranks that complete the update of step `step` - 1 by themselves: others had agreed on it and
  // done it, so all gradients were complete.
  std::vector<int> behind = {};
  // Ranks that have left, by their former numbers.
  struct Gone {
    int former = 0;
    int holder = -1;  // the rank with a copy of its own state; -1: the state is lost

    bool operator==(const Gone&) const = default;
  };
  std::vector<Gone> gone = {};
};

// By which copies are kept (holders.h): the number of ranks of the largest host.
int most_local(std::span<const RankProgress> ranks);

// `ranks` by rank. Equal input gives all ranks the same result or error.
// Throws: PeerLost where a present rank's own state is lost, since its holders died with it;
// Mismatch where the ranks' steps differ so much that they cannot have taken the same steps.
Resumption decide_resumption(std::span<const RankProgress> ranks);

}  // namespace lockstep::inline v0::recover
