#include "lockstep/comm/algorithms/ring.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <vector>

#include "lockstep/comm/backend/reduce_kernels.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::algorithms {
namespace {

void check(const at::Tensor& tensor, ReduceOp op) {
  if (!tensor.defined() || !is_supported_dtype(tensor.scalar_type())) {
    throw InvalidArgument(
        "ring all_reduce: the tensor is undefined or of a dtype that is not carried");
  }
  if (!is_valid_reduction(op, tensor.scalar_type())) {
    throw InvalidArgument(std::string("ring all_reduce: ") + to_string(op) + " is not defined on " +
                          dtype_name(tensor.scalar_type()));
  }
}

const std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}

// target = target op addend.
void combine(const at::Tensor& target, const at::Tensor& addend, ReduceOp op) {
  const std::byte* inputs[] = {bytes_of(addend), bytes_of(target)};
  reduce_buffers(static_cast<std::byte*>(target.mutable_data_ptr()), inputs, target.numel(),
                 target.scalar_type(), op);
}

int neighbour(const Communicator& comm, int offset) {
  return (comm.rank() + offset + comm.size()) % comm.size();
}

// Sends `out` to the right while `in` arrives from the left.
void exchange(Communicator& comm, const at::Tensor& out, const at::Tensor& in,
              Communicator::Site site) {
  Work received = comm.irecv(in, neighbour(comm, -1), 0, site);
  Work sent = comm.isend(out, neighbour(comm, +1), 0, site);
  received.wait();
  sent.wait();
}

}  // namespace

RingCost ring_all_reduce(Communicator& comm, const at::Tensor& tensor, ReduceOp op,
                         Communicator::Site site) {
  check(tensor, op);
  const at::NoGradGuard no_grad;
  const int size = comm.size();
  const at::ScalarType wire = accumulation_type(tensor.scalar_type());
  const at::Tensor flat = tensor.to(at::kCPU, wire).contiguous().view({-1});
  const bool staged = !flat.is_alias_of(tensor);
  // The steps compute a sum; the average is taken at the end.
  const ReduceOp step_op = op == ReduceOp::kAvg ? ReduceOp::kSum : op;

  const int64_t length = (flat.numel() + size - 1) / size;
  const auto chunk = [&](int index) {
    const int64_t c = (index % size + size) % size;
    const int64_t begin = std::min(flat.numel(), c * length);
    return flat.narrow(0, begin, std::min(flat.numel(), begin + length) - begin);
  };
  RingCost cost;
  const auto count = [&](const at::Tensor& sent) {
    ++cost.steps;
    cost.bytes_sent += static_cast<int64_t>(sent.nbytes());
  };

  // Reduce-scatter: in step s rank r sends chunk r-s and adds the chunk that it receives to chunk
  // r-s-1.
  for (int s = 0; s < size - 1; ++s) {
    const at::Tensor out = chunk(comm.rank() - s);
    const at::Tensor mine = chunk(comm.rank() - s - 1);
    const at::Tensor in = at::empty_like(mine);
    exchange(comm, out, in, site);
    combine(mine, in, step_op);
    count(out);
  }
  if (op == ReduceOp::kAvg) chunk(comm.rank() + 1).div_(static_cast<double>(size));
  // All-gather: rank r now owns the whole sum of chunk r+1 and passes on the chunk that it received
  // last.
  for (int s = 0; s < size - 1; ++s) {
    const at::Tensor out = chunk(comm.rank() + 1 - s);
    exchange(comm, out, chunk(comm.rank() - s), site);
    count(out);
  }
  if (staged) tensor.copy_(flat.view(tensor.sizes()));
  return cost;
}

RingCost naive_ring_all_reduce(Communicator& comm, const at::Tensor& tensor, ReduceOp op,
                               Communicator::Site site) {
  check(tensor, op);
  const at::NoGradGuard no_grad;
  const int size = comm.size();
  std::vector<at::Tensor> parts(size);
  parts[comm.rank()] = tensor.cpu().contiguous();
  RingCost cost;
  for (int s = 0; s < size - 1; ++s) {
    // This rank now sends what it received in the step before: the part of the rank s places to the
    // left.
    const at::Tensor& out = parts[neighbour(comm, -s)];
    at::Tensor& in = parts[neighbour(comm, -s - 1)];
    in = at::empty_like(out);
    exchange(comm, out, in, site);
    ++cost.steps;
    cost.bytes_sent += static_cast<int64_t>(out.nbytes());
  }
  std::vector<const std::byte*> inputs;
  for (const at::Tensor& part : parts) inputs.push_back(bytes_of(part));
  const at::Tensor sum = at::empty_like(parts[comm.rank()]);
  reduce_buffers(static_cast<std::byte*>(sum.mutable_data_ptr()), inputs, sum.numel(),
                 sum.scalar_type(), op);
  tensor.copy_(sum.view(tensor.sizes()));
  return cost;
}

void all_reduce(Communicator& comm, const at::Tensor& tensor, AllReduce algorithm, ReduceOp op,
                Communicator::Site site) {
  switch (algorithm) {
    case AllReduce::kEngine:
      return comm.all_reduce(tensor, op, site);
    case AllReduce::kRing:
      ring_all_reduce(comm, tensor, op, site);
      return;
    case AllReduce::kNaiveRing:
      naive_ring_all_reduce(comm, tensor, op, site);
      return;
  }
}

}  // namespace lockstep::inline v0::algorithms
