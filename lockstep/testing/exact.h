// Inputs whose reductions are exact in every dtype, so that results can be compared bit by bit with
// any other order of adding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/types.h"

namespace lockstep::testing {

// What `rank` contributes: small integers for sums and extrema, +-1 and +-2 for products, bit
// patterns for bitwise reductions. Every process can compute every rank's input. Contiguous, on the
// CPU.
at::Tensor exact_input(int rank, int64_t count, at::ScalarType dtype, ReduceOp op = ReduceOp::kSum);

// The reduction of the parts, computed in float64 or int64 and rounded once to the parts' dtype.
at::Tensor exact_reduction(const std::vector<at::Tensor>& parts, ReduceOp op);

}  // namespace lockstep::testing
