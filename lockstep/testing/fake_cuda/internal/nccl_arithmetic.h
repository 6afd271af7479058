// What the operations of FakeCuda's NCCL do to memory. Not a public header.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::inline v0::testing::fake {

// By NCCL's number; 0 for one that is unknown.
size_t nccl_item_size(int dtype);

// The sum (or product, maximum, minimum, average, by NCCL's number) of `inputs` in their order,
// `count` elements each, into `output`, which may be one of them. 16-bit numbers are added in
// float32.
void nccl_reduce(int dtype, int op, const std::vector<const std::byte*>& inputs, std::byte* output,
                 size_t count);

}  // namespace lockstep::inline v0::testing::fake
