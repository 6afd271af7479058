// Where a computation that is divided among ranks begins and ends (Megatron-LM's f and g, Shoeybi et al.,
// arXiv:1909.08053; g and g-bar of sequence parallelism, Korthikanti et al., arXiv:2205.05198). Between two of
// them each rank computes its part; outside, all compute the same, or each its rows.
//
//   at::Tensor y = copy_to_parts(comm, x);                     // x is alike on all parts
//   y = at::linear(at::relu(at::linear(y, mine_of_first)), mine_of_second);
//   y = reduce_from_parts(comm, y);                            // and y is again
//
//   region             forward                                 backward
//   copy_to_parts      as it is                                sum over the parts
//   reduce_from_parts  sum over the parts                      as it is
//   gather_rows        all parts' rows, in order               sum over the parts, of which each gets its rows
//   scatter_rows       sum over the parts, of which each       all parts' rows, in order
//                      gets its rows
//   take_rows          this part's rows                        all parts' rows, in order
//   join_rows          all parts' rows, in order               this part's rows
//   gather_columns     all parts' columns, in order            this part's columns
//
// take_rows and join_rows stand between rows that all parts have, and compute with alike, and rows that each part has
// its own of: the first makes the one the other, the second goes back.
//
// Gradients are those of ONE loss that every part computes alike (after reduce_from_parts, join_rows or gather_columns),
// or whose parts' gradients add up (after scatter_rows). functional.h's are of the sum of all ranks' losses,
// which here would be size() times too much.
//
// All are collective over `comm`, in forward, and in backward where the argument requires grad; so it does on
// all parts or on none. Autograd runs what was done last first, hence in one order on all parts. Backward uses the
// communicator on the thread that runs it: on the CPU the caller's, else a thread of autograd's for which the
// caller waits; so it is one at a time as long as one thread calls. A region may be used any number of times, and
// its backward is made of regions: gradients of gradients are right. The graph holds the communicator.
//
// Tensors are floating-point of a type that the communicator carries (float32, float64, bfloat16, float16, the
// latter two summed in float32); dim 0 are rows. The results of copy_to_parts, and of all where `comm` is one rank,
// share the argument's memory; the others are new. Where the communicator is deterministic the results have the
// same bits on all parts. Throw InvalidArgument before anything is sent. Ranks that are out of step get Mismatch, with
// the region's name where it sums up, otherwise with `site`, also out of backward().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Any shape, the same on all parts.
LOCKSTEP_API at::Tensor copy_to_parts(const Communicator& comm, const at::Tensor& x,
                                      Communicator::Site site = Communicator::Site::current());
LOCKSTEP_API at::Tensor reduce_from_parts(const Communicator& comm, const at::Tensor& x,
                                          Communicator::Site site = Communicator::Site::current());

// [k, ...] -> [size * k, ...], and [size * k, ...] -> [k, ...].
LOCKSTEP_API at::Tensor gather_rows(const Communicator& comm, const at::Tensor& x,
                                    Communicator::Site site = Communicator::Site::current());
LOCKSTEP_API at::Tensor scatter_rows(const Communicator& comm, const at::Tensor& x,
                                     Communicator::Site site = Communicator::Site::current());

// [size * k, ...] -> [k, ...], and [k, ...] -> [size * k, ...].
LOCKSTEP_API at::Tensor take_rows(const Communicator& comm, const at::Tensor& x,
                                  Communicator::Site site = Communicator::Site::current());
LOCKSTEP_API at::Tensor join_rows(const Communicator& comm, const at::Tensor& x,
                                  Communicator::Site site = Communicator::Site::current());

// [rows, counts[rank]] -> [rows, sum of counts]; counts: the parts' columns, the same vector on all parts.
LOCKSTEP_API at::Tensor gather_columns(const Communicator& comm, const at::Tensor& x,
                                       const std::vector<int64_t>& counts,
                                       Communicator::Site site = Communicator::Site::current());

}  // namespace lockstep::inline v0
