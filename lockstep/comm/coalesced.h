// Lists of tensors, of mixed shapes and dtypes, in few operations.
//
// Tensors of up to kCoalescedBytes travel together, those of one dtype in one operation, in the
// order of the list; a longer one gains nothing by that and has an operation of its own. The
// results are those of the operation called on each tensor in turn: bit for bit where the backend's
// capabilities say `rank_order`, else as far as the order of additions goes. All ranks give lists
// of the same shapes and dtypes in the same order: all_reduce lists that differ in anything are
// Mismatch, the others' where the elements of a dtype differ in number. Errors, threads and sites
// are as in communicator.h; InvalidArgument comes before anything is sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// Of a tensor given: up to this many bytes it is worth the copy.
inline constexpr int64_t kCoalescedBytes = int64_t{256} << 10;

// Reduces each tensor in place, everywhere. Collective.
void all_reduce_coalesced(Communicator& comm, std::span<const at::Tensor> tensors,
                          ReduceOp op = ReduceOp::kSum,
                          Communicator::Site site = Communicator::Site::current());
// Results are in the tensors once the Work is over; until then they are neither read nor written.
Work iall_reduce_coalesced(Communicator& comm, std::span<const at::Tensor> tensors,
                           ReduceOp op = ReduceOp::kSum,
                           Communicator::Site site = Communicator::Site::current());

// Copies the root's tensors into everybody's. Collective.
void broadcast_coalesced(Communicator& comm, std::span<const at::Tensor> tensors, int root,
                         Communicator::Site site = Communicator::Site::current());

// all_gather of each tensor: [k, ...] gives [size * k, ...]. Collective.
std::vector<at::Tensor> all_gather_coalesced(
    Communicator& comm, std::span<const at::Tensor> tensors,
    Communicator::Site site = Communicator::Site::current());

// reduce_scatter of each tensor: [size * k, ...] gives [k, ...]. Collective.
std::vector<at::Tensor> reduce_scatter_coalesced(
    Communicator& comm, std::span<const at::Tensor> tensors, ReduceOp op = ReduceOp::kSum,
    Communicator::Site site = Communicator::Site::current());

}  // namespace lockstep
