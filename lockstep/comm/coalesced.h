// Lists of tensors, of mixed shapes and dtypes, in few operations.
//
// Tensors of up to kCoalescedBytes travel together, those of one dtype in one operation, in the
// order of the list. A longer tensor gains nothing from that and has an operation of its own. The
// results equal those of calling the operation on each tensor in turn: bit for bit where the
// backend's capabilities say `rank_order`, otherwise up to the order of additions.
// Requires: all ranks give lists of the same shapes and dtypes in the same order.
// Throws: InvalidArgument before anything is sent. Mismatch from all_reduce where the lists differ
// at all, and from the other operations where a dtype's element counts differ. Otherwise errors,
// threads and sites are as in communicator.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Size limit in bytes up to which copying a tensor into a shared operation pays off.
inline constexpr int64_t kCoalescedBytes = int64_t{256} << 10;

// Reduces each tensor in place, everywhere.
// Collective: all ranks call it.
LOCKSTEP_API void all_reduce_coalesced(Communicator& comm, std::span<const at::Tensor> tensors,
                                       ReduceOp op = ReduceOp::kSum,
                                       Communicator::Site site = Communicator::Site::current());
// The results are in the tensors once the Work is complete; until then they must be neither read
// nor written.
LOCKSTEP_API Work iall_reduce_coalesced(Communicator& comm, std::span<const at::Tensor> tensors,
                                        ReduceOp op = ReduceOp::kSum,
                                        Communicator::Site site = Communicator::Site::current());

// Copies the root's tensors into those of every rank.
// Collective: all ranks call it.
LOCKSTEP_API void broadcast_coalesced(Communicator& comm, std::span<const at::Tensor> tensors,
                                      int root,
                                      Communicator::Site site = Communicator::Site::current());

// all_gather of each tensor: [k, ...] gives [size * k, ...].
// Collective: all ranks call it.
LOCKSTEP_API std::vector<at::Tensor> all_gather_coalesced(
    Communicator& comm, std::span<const at::Tensor> tensors,
    Communicator::Site site = Communicator::Site::current());

// reduce_scatter of each tensor: [size * k, ...] gives [k, ...].
// Collective: all ranks call it.
LOCKSTEP_API std::vector<at::Tensor> reduce_scatter_coalesced(
    Communicator& comm, std::span<const at::Tensor> tensors, ReduceOp op = ReduceOp::kSum,
    Communicator::Site site = Communicator::Site::current());

}  // namespace lockstep::inline v0
