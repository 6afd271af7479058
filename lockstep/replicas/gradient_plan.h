// Decides which gradients travel together, and in which order. Pure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/flat/bucket_plan.h"

namespace lockstep::inline v0::internal {

// Buckets of gradients. One of a single gradient is reduced where the gradient lies; the gradients
// of others are packed one after another.
//
// `parameters`: those whose gradients are reduced; `bucket_bytes` as in AverageOptions. A gradient
// of `alone_bytes` or more is alone: copying it costs more than a call. These come first, so that
// they are under way while others are packed. Equal input gives equal output on all ranks.
LOCKSTEP_API std::vector<flat::Bucket> plan_gradients(std::span<const flat::TensorSpec> parameters,
                                                      int64_t bucket_bytes, int64_t alone_bytes);

// A word that equals the other ranks' where their parameters have the same shapes and dtypes in the
// same order.
LOCKSTEP_API uint64_t shapes_word(std::span<const at::Tensor> parameters);

}  // namespace lockstep::inline v0::internal
