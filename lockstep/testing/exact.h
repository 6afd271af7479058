// Inputs whose reductions are exact in every dtype, so that results can be compared bit by bit with
// any other order of adding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/backend/types.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0::testing {

// What `rank` contributes: small integers for sums and extrema, +-1 and +-2 for products, bit
// patterns for bitwise reductions. Every process can compute every rank's input. Contiguous, on the
// CPU.
LOCKSTEP_API at::Tensor exact_input(int rank, int64_t count, at::ScalarType dtype,
                                    ReduceOp op = ReduceOp::kSum);

// The reduction of the parts, computed in float64 or int64 and rounded once to the parts' dtype.
LOCKSTEP_API at::Tensor exact_reduction(const std::vector<at::Tensor>& parts, ReduceOp op);

// The reduction of what `ranks` ranks contribute. It repeats as they do and is computed once for
// all repetitions: with long tensors the oracle would else take more time than what it judges.
LOCKSTEP_API at::Tensor exact_result(int ranks, int64_t count, at::ScalarType dtype, ReduceOp op);

}  // namespace lockstep::inline v0::testing
