// Ring all-reduce over isend and irecv: two ways to do with messages what Communicator::all_reduce
// does in the engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0::algorithms {

// The all-reduce that a caller in a higher room chooses.
enum class AllReduce : uint8_t {
  kEngine,     // Communicator::all_reduce
  kRing,       // ring_all_reduce
  kNaiveRing,  // naive_ring_all_reduce
};

// The cost of one rank. Bytes are payload, as in CommunicatorStats.
struct RingCost {
  int64_t steps = 0;  // message exchanges with the neighbours, one after another
  int64_t bytes_sent = 0;
};

// Reduces in place on every rank. Tensors and reductions are as for Communicator::all_reduce. The
// reduction runs on the host: a device's tensor is copied to the host and back.
// Collective: all ranks call it.
//
// Chunked ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009): the tensor is cut into N chunks; N-1 steps of reduce-scatter, in which
// chunk c travels the ring from rank c+1 to rank c and every rank adds its own part; then N-1 steps
// of all-gather. 2 (N-1) steps; 2 (N-1)/N * S bytes sent a rank (S rounded up to N chunks' worth at
// most). Every chunk is summed by one rank in ring order: all ranks hold the same bits, in every
// run. float16 and bfloat16 travel as float32, so S is twice the tensor's bytes for them.
LOCKSTEP_API RingCost ring_all_reduce(Communicator& comm, const at::Tensor& tensor,
                                      ReduceOp op = ReduceOp::kSum,
                                      Communicator::Site site = Communicator::Site::current());

// Naive ring (PyTorch's "Writing Distributed Applications"): in each of N-1 steps every rank passes
// on the tensor that it received in the step before. It takes N-1 steps, and each rank sends (N-1)
// * S bytes. The original adds in a different order on every rank; here the parts are kept and
// added in rank order, so all ranks hold the same bits. It needs memory for N tensors.
LOCKSTEP_API RingCost
naive_ring_all_reduce(Communicator& comm, const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                      Communicator::Site site = Communicator::Site::current());

// Runs the algorithm that the enumerator names.
LOCKSTEP_API void all_reduce(Communicator& comm, const at::Tensor& tensor, AllReduce algorithm,
                             ReduceOp op = ReduceOp::kSum,
                             Communicator::Site site = Communicator::Site::current());

}  // namespace lockstep::inline v0::algorithms
