// What rank 0 tells the other ranks through MPI before there is a store: where it serves one, and
// the secret for it. Not a public header.
#pragma once

#include <string>

#include "lockstep/core/deadline.h"

namespace lockstep::mpi {

inline constexpr size_t kMaxWord = 4095;

// Rank 0's `word` (others' are ignored; at most kMaxWord bytes) on all ranks of MPI's world. It
// travels as MPI's own data does: without encryption or proof of who sent it. Initialises MPI
// (mpi_process.h), which knows no deadline, on a thread of its own: after Timeout end the process.
// Collective over MPI's world. Throws LaunchError (no MPI), Mismatch, Timeout, PeerLost.
std::string word_of_rank_zero(const std::string& word, int rank, int size, Deadline deadline);

}  // namespace lockstep::mpi
