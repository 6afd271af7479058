// Kernels that combine several ranks' buffers into one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0 {

// outputs[j][i] = inputs[0][i] op inputs[1][i] op .. for all j and i < count, combined in that
// order; for kAvg the sum is divided by the number of inputs. float16 and bfloat16 are combined in
// float32 and rounded once, to nearest even. Integer sums and products wrap around. NaN propagates
// through min and max, as in PyTorch. An output may be one of the inputs but must not overlap an
// input otherwise; outputs must not overlap each other. The bits depend neither on how a buffer is
// cut nor on the processor (except NaN's payload).
// Requires: is_valid_reduction(op, dtype).
void reduce_buffers(std::span<std::byte* const> outputs, std::span<const std::byte* const> inputs,
                    int64_t count, at::ScalarType dtype, ReduceOp op);
inline void reduce_buffers(std::byte* output, std::span<const std::byte* const> inputs,
                           int64_t count, at::ScalarType dtype, ReduceOp op) {
  reduce_buffers({&output, 1}, inputs, count, dtype, op);
}

}  // namespace lockstep::inline v0
