// The words that ranks exchange through MPI before there is a store. Not a public header.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/engines/mpi/mpi_world.h"
#include "lockstep/core/deadline.h"

namespace lockstep::inline v0::mpi {

// The processes that mpirun or srun started. MPI has no deadlines, so it is initialised
// (mpi_process.h) on a thread of its own: after Timeout end the process.
// Collective: all ranks of MPI's world.
// Throws: LaunchError (no MPI), Mismatch, Timeout.
std::shared_ptr<const World> world_of_job(int rank, int size, Deadline deadline);

inline constexpr size_t kMaxWord = 4095;  // bytes

// Words travel like MPI's own data, without encryption or proof of their sender. Both functions
// call MPI on the calling thread only. After Timeout MPI may still write to memory that is left to
// it.
// Collective: all ranks of the world.
// Throws: Timeout, PeerLost.
//
// Returns rank 0's `word` on all ranks; others' are ignored.
std::string word_of_rank_zero(const World& world, const std::string& word, Deadline deadline);
// Returns all ranks' words, by rank. A word has at most kMaxName bytes.
inline constexpr size_t kMaxName = 319;
std::vector<std::string> words_of_all(const World& world, const std::string& word,
                                      Deadline deadline);

}  // namespace lockstep::inline v0::mpi
