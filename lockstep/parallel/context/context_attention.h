// Attention of the tokens of sequences to themselves and those before them, where each of several ranks has some of
// the tokens (context_layout.h): by a ring, or by heads.
//
//   at::Tensor mixed = ring_attention(comm, queries, keys, values, lengths);   // of this rank's tokens
//
//   way     what goes where                                  limits
//   ring    keys and values from rank to rank, size() - 1    none
//           times; queries stay (Liu et al., Ring Attention,
//           arXiv:2310.01889)
//   heads   queries, keys and values of all tokens to the    size() divides the heads of queries
//           rank that has their head, and what is mixed back
//           (Jacobs et al., DeepSpeed-Ulysses,
//           arXiv:2309.14509)
//
// A block of the ring is computed by libtorch's attention for the CPU (Dao et al., arXiv:2205.14135), which gives
// the logarithm of the sum of exponentials as well; blocks are put together by it (Milakov and Gimelshein,
// arXiv:1805.02867), in float32, or float64 for float64. While a block is computed the next one travels. Backward
// goes round once more, block by block with the sums of the whole, and the gradients of keys and values travel with
// their block until they are home.
//
// Per call and rank, with `own` = this rank's bytes of keys and values together (each block of its rank's bytes, to
// be exact), of queries q and of what is mixed m:
//   ring    forward sends (size() - 1) x own; backward as much again, and size() x the gradients, of float32 where the
//           others are of 16 bits
//   heads   forward (q + own) + m, backward m + (q + own), of which 1 / size() stays where it is; keys' heads that fewer
//           than size() ranks would have are sent to all that need them
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/parallel/context/context_layout.h"

namespace lockstep::inline v0 {

// queries [rows, heads, width], keys and values [rows, key_value_heads, width] -> [rows, heads, width]: of this rank's
// rows context_rows(lengths, rank, size) of the batch, which may be none. Each head of keys is for heads /
// key_value_heads heads of queries, in order. Float32, float64 or bfloat16, on the CPU; of one type. Scores are
// divided by the square root of the width.
//
// Collective, with the same lengths on all ranks. That is not compared here: the ring's messages get Mismatch for
// other sizes, and what else differs gives wrong numbers. token_part() compares once for all layers; do likewise.
// Backward is collective as well, where it is differentiated, on all ranks or on none.
// Gradients are those of the sum of all ranks' losses, as functional.h has them. A second backward of one graph
// sends everything again. The graph holds the communicator. Two runs give equal bits.
//
// Throws InvalidArgument before anything is sent: shapes and types that do not fit, heads that do not divide. In
// backward: create_graph. Errors of the communicator name `site`, also out of backward().
LOCKSTEP_API at::Tensor ring_attention(const Communicator& comm, const at::Tensor& queries,
                                       const at::Tensor& keys, const at::Tensor& values,
                                       const std::vector<int64_t>& lengths,
                                       Communicator::Site site = Communicator::Site::current());
LOCKSTEP_API at::Tensor heads_attention(const Communicator& comm, const at::Tensor& queries,
                                        const at::Tensor& keys, const at::Tensor& values,
                                        const std::vector<int64_t>& lengths,
                                        Communicator::Site site = Communicator::Site::current());

// That so many heads can go to `ranks` ranks. Throws InvalidArgument.
LOCKSTEP_API void check_context_heads(ContextWay way, int64_t heads, int64_t key_value_heads,
                                      int64_t ranks);

}  // namespace lockstep::inline v0
