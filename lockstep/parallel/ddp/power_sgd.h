// PowerSGD: gradients averaged as products of two thin matrices.
//
// Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization", NeurIPS 2019, algorithms 1 and 2: for each gradient, seen as a matrix M [n, m]
// (dim 0 by the rest) plus the error of earlier steps,
//   P = M Q, averaged over the ranks, its columns made orthonormal;   [n, rank]
//   Q = M^T P, averaged;                                              [m, rank]
//   the gradient is P Q^T; its difference from M is this rank's error for the next step.
// (n + m) * rank numbers travel instead of n * m. The result is not the average, but the errors are
// added later, and training converges nearly as with it; rank 1 to 4 is usual.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/core/export.h"
#include "lockstep/parallel/ddp/comm_hook.h"

namespace lockstep::inline v0 {

// The options of make_power_sgd_hook().
struct PowerSgdOptions {
  int64_t rank = 2;            // columns of the two thin matrices
  int64_t start_step = 10;     // this many reductions are plain averages before
  double min_compression = 2;  // gradients that shrink less are averaged without compression
  bool error_feedback = true;  // without it training is biased, and may not converge
  bool warm_start = true;      // Q is the last step's; otherwise drawn anew at each step
  uint64_t seed = 0;           // for the first Q; the same on all ranks
};

// For float32 and float64 gradients. Other dtypes, vectors and gradients that shrink less than
// min_compression are averaged without compression, together with P. A hook belongs to one wrapper.
// Throws: InvalidArgument unless rank >= 1, start_step >= 0 and min_compression > 0.
// Cost: memory for one copy of the compressed gradients (the errors).
LOCKSTEP_API std::unique_ptr<CommHook> make_power_sgd_hook(PowerSgdOptions options = {});

}  // namespace lockstep::inline v0
