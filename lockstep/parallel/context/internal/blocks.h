// Attention of one part's queries to another part's keys, added to what the queries have seen so far. Without ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep::inline v0::internal {

// The place of a block: the queries of part `part` of all sequences, the keys of `of_part`.
struct BlockPlace {
  const std::vector<int64_t>& lengths;
  int64_t part = 0;
  int64_t of_part = 0;
  int64_t parts = 1;
};

// The attention of queries so far, over the keys they have seen: float32, or float64 of float64.
struct Seen {
  at::Tensor mixed;  // [rows, heads, width]
  at::Tensor sums;   // [rows, heads]: logarithms of the sums of exponentials of scores
};
at::ScalarType accumulated_type(at::ScalarType type);

// A long block is computed a few heads at a time, and `between` is called after each few, so that
// what is being sent moves on; which heads are computed together does not change their bits.
using Between = std::function<void()>;

// queries [rows of part, heads, width]; keys, values [rows of of_part, key_value_heads, width], of any stride
// of rows. A part's own block comes first, and fills `seen`.
void attend_block(const BlockPlace& place, const at::Tensor& queries, const at::Tensor& keys,
                  const at::Tensor& values, const Seen& seen, const Between& between);

// Inputs, results and gradient of the whole attention, for the gradients of a block of it.
struct Attended {
  at::Tensor queries;  // as above
  at::Tensor mixed;    // of the queries' type
  at::Tensor sums;
  at::Tensor dmixed;  // the gradient
};
// Adds to dqueries, dkeys, dvalues: of the accumulated type, or, of a block that is alone, of any.
void block_gradients(const BlockPlace& place, const Attended& of, const at::Tensor& keys,
                     const at::Tensor& values, const at::Tensor& dqueries, const at::Tensor& dkeys,
                     const at::Tensor& dvalues, const Between& between);

}  // namespace lockstep::inline v0::internal
