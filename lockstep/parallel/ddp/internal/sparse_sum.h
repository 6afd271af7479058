// Sums sparse gradients over the ranks: their indices and values are gathered, nothing dense is
// made. Not used directly.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/communicator.h"

namespace lockstep::internal {

// The sum of the ranks' COO tensors of one shape, coalesced, the same bits everywhere. An undefined
// one contributes nothing; if all are, so is the result. Collective; throws what the communicator
// throws, and InvalidArgument, on all ranks, if they differ in their sparse dims.
at::Tensor sum_sparse(Communicator& comm, const at::Tensor& own, at::IntArrayRef shape,
                      at::ScalarType dtype);

}  // namespace lockstep::internal
