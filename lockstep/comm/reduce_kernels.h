// Element-wise reduction of several buffers on the CPU, in a fixed order.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/comm/types.h"

namespace lockstep {

// output[i] = ((inputs[0][i] op inputs[1][i]) op inputs[2][i]) ... for `count` elements, and for
// kAvg divided by inputs.size() at the end. float16 and bfloat16 are computed in float32 and
// rounded once. Integers wrap around. NaN propagates through min and max, as in PyTorch. `output`
// may be one of the inputs, but not overlap one otherwise. Requires is_valid_reduction(op, dtype).
void reduce_buffers(std::byte* output, std::span<const std::byte* const> inputs, int64_t count,
                    at::ScalarType dtype, ReduceOp op);

}  // namespace lockstep
