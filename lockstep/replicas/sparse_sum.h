// Sums sparse gradients over the ranks: gathers their indices and values without a dense tensor.
// Not used directly.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0::internal {

// The sum of the ranks' COO gradients of a parameter, coalesced, with the same bits on all ranks.
// An undefined one contributes nothing; if all are undefined, so is the result. `parameter` gives
// shape, dtype and device.
// Collective: all ranks call it.
// Throws: the communicator's errors, and InvalidArgument, on all ranks, if they differ in their
// sparse dims.
at::Tensor sum_sparse(Communicator& comm, const at::Tensor& own, const at::Tensor& parameter);

}  // namespace lockstep::inline v0::internal
