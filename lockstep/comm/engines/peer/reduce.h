// Reductions over the data of several ranks, by libtorch's kernels. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0::peer {

// Sets `to` to the reduction of the sources, element by element in their order, with the meaning of
// ReduceOp: 16-bit types in float32, rounded once. The tensors are flat, of one device, dtype and
// length; `to` may be one of the sources. Runs on the current stream.
void reduce_into(at::Tensor to, std::span<const at::Tensor> sources, ReduceOp op);

}  // namespace lockstep::inline v0::peer
