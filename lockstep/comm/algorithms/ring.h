// Ring all-reduce over isend and irecv: two ways to do by messages what Communicator::all_reduce
// does by the engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/types.h"

namespace lockstep::algorithms {

// Which all-reduce a caller of the higher rooms wants.
enum class AllReduce : uint8_t {
  kEngine,     // Communicator::all_reduce
  kRing,       // ring_all_reduce
  kNaiveRing,  // naive_ring_all_reduce
};

// What one rank did. Bytes are payload, as in CommunicatorStats.
struct RingCost {
  int64_t steps = 0;  // message exchanges with the neighbours, one after another
  int64_t bytes_sent = 0;
};

// In place, everywhere. Collective; tensors and reductions as for Communicator::all_reduce. It is done on
// the host: a device's tensor is copied there and back.
//
// Chunked ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009): the tensor is cut into N chunks; N-1 steps of reduce-scatter, in which
// chunk c travels the ring from rank c+1 to rank c and every rank adds its own part; then N-1 steps
// of all-gather. 2 (N-1) steps; 2 (N-1)/N * S bytes sent a rank (S rounded up to N chunks' worth at
// most). Every chunk is summed by one rank in ring order: all ranks hold the same bits, in every
// run. float16 and bfloat16 travel as float32, so S is twice the tensor's bytes for them.
RingCost ring_all_reduce(Communicator& comm, const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                         Communicator::Site site = Communicator::Site::current());

// Naive ring (PyTorch's "Writing Distributed Applications"): in each of N-1 steps every rank passes
// on the tensor that it got in the step before. (N-1) steps, (N-1) * S bytes sent a rank. Unlike
// the original, which adds in another order on every rank, the parts are kept and added in rank
// order: all ranks hold the same bits. Needs memory for N tensors.
RingCost naive_ring_all_reduce(Communicator& comm, const at::Tensor& tensor,
                               ReduceOp op = ReduceOp::kSum,
                               Communicator::Site site = Communicator::Site::current());

// By name of the enumerator.
void all_reduce(Communicator& comm, const at::Tensor& tensor, AllReduce algorithm,
                ReduceOp op = ReduceOp::kSum,
                Communicator::Site site = Communicator::Site::current());

}  // namespace lockstep::algorithms
