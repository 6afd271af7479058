// The measurements of `lockstep bench collectives`. Every backend runs in the same ranks, in
// alternating rounds, with buffers that are rewritten before each operation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/bench/figures.h"

namespace lockstep::inline v0::bench {

// Names among the backends: MPI's blocking functions on plain memory, without Lockstep; and copies
// of as many bytes as an operation must move, its limit.
inline constexpr const char* kRawMpi = "mpi-raw";
inline constexpr const char* kCopies = "copies";

struct CollectivesOptions {
  std::vector<Op> ops;
  std::vector<std::string> backends;  // as for init(), kRawMpi and kCopies
  std::vector<int64_t> sizes;         // bytes
  std::vector<at::ScalarType> dtypes;
  bool symmetric = false;  // also with symmetric tensors, where a backend has them
  int rounds = 9;
  double block_ms = 40;  // the approximate time of one backend's turn
};

// Whether a backend is MPI's, so that only mpirun can start its ranks.
bool needs_mpirun(const std::vector<std::string>& backends);

// Joins the job of this process, a rank, once for each backend, and measures. Rank 0 calls `report`
// with the rows while the others wait.
// Collective: all ranks call it.
// Throws: what init() and collectives throw.
void measure_collectives(const CollectivesOptions& options,
                         const std::function<void(const std::vector<Row>&)>& report);

}  // namespace lockstep::inline v0::bench
