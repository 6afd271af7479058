// Rank 0 tells the other ranks through MPI, before there is a store, where it serves one and the
// secret for it. Not a public header.
#pragma once

#include <string>

#include "lockstep/core/deadline.h"

namespace lockstep::inline v0::mpi {

inline constexpr size_t kMaxWord = 4095;

// Returns rank 0's `word` (at most kMaxWord bytes; others' are ignored) on all ranks of MPI's
// world. It travels like MPI's own data, without encryption or proof of its sender. MPI has no
// deadlines, so it is initialised (mpi_process.h) on a thread of its own: after Timeout end the
// process.
// Collective: all ranks of MPI's world.
// Throws: LaunchError (no MPI), Mismatch, Timeout, PeerLost.
std::string word_of_rank_zero(const std::string& word, int rank, int size, Deadline deadline);

}  // namespace lockstep::inline v0::mpi
