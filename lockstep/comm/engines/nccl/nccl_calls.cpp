#include "lockstep/comm/engines/nccl/nccl_calls.h"

#include "lockstep/comm/engines/nccl/nccl_group.h"
#include "lockstep/core/check.h"

namespace lockstep::inline v0::nccl {
namespace {

Datatype nccl_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return kFloat32;
    case at::kDouble:
      return kFloat64;
    case at::kHalf:
      return kFloat16;
    case at::kBFloat16:
      return kBfloat16;
    case at::kChar:
      return kInt8;
    case at::kByte:
      return kUint8;
    case at::kInt:
      return kInt32;
    case at::kLong:
      return kInt64;
    default:
      LOCKSTEP_CHECK(false, "what NCCL cannot reduce is composed");
  }
}

Operator nccl_operator(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return kSum;
    case ReduceOp::kAvg:
      return kAvg;
    case ReduceOp::kProduct:
      return kProduct;
    case ReduceOp::kMin:
      return kMin;
    case ReduceOp::kMax:
      return kMax;
    default:
      LOCKSTEP_CHECK(false, "what NCCL cannot reduce is refused");
  }
}

// Operations that NCCL has no function for are a group of messages.
Result exchange(const Call& call, const Target& target) {
  const Functions& f = target.functions;
  const auto part = [&](const std::vector<int64_t>& counts, int rank) {
    return static_cast<size_t>(counts[static_cast<size_t>(rank)]) * c10::elementSize(call.dtype);
  };
  const bool is_root = target.rank == call.root;
  Group group(f);
  if (call.op == Op::kGather) {
    group.add(f.send(call.input, part(call.counts, target.rank), kUint8, call.root, target.comm,
                     target.stream));
  } else if (call.op == Op::kAllToAll || is_root) {
    const std::byte* from = call.input;
    for (int r = 0; r < target.size; ++r) {
      group.add(f.send(from, part(call.counts, r), kUint8, r, target.comm, target.stream));
      from += part(call.counts, r);
    }
  }
  if (call.op == Op::kScatter) {
    group.add(f.recv(call.output, part(call.counts, target.rank), kUint8, call.root, target.comm,
                     target.stream));
  } else if (call.op == Op::kAllToAll || is_root) {
    const std::vector<int64_t>& counts = call.op == Op::kAllToAll ? call.recv_counts : call.counts;
    std::byte* to = call.output;
    for (int r = 0; r < target.size; ++r) {
      group.add(f.recv(to, part(counts, r), kUint8, r, target.comm, target.stream));
      to += part(counts, r);
    }
  }
  return group.end();
}

}  // namespace

Capabilities capabilities_on(c10::Device device) {
  Capabilities c;
  c.backend = "nccl";
  c.device = device;
  c.stream_ordered = true;
  c.processes = true;
  c.ops.fill(true);
  for (const Op op : {Op::kGather, Op::kScatter, Op::kAllToAll})
    c.v_ops[static_cast<int>(op)] = true;
  c.move_dtypes = all_dtypes();
  c.reduce_dtypes = bit(at::kFloat) | bit(at::kDouble) | bit(at::kHalf) | bit(at::kBFloat16) |
                    bit(at::kChar) | bit(at::kByte) | bit(at::kInt) | bit(at::kLong);
  const uint32_t arithmetic =
      bit(ReduceOp::kSum) | bit(ReduceOp::kProduct) | bit(ReduceOp::kMin) | bit(ReduceOp::kMax);
  c.float_reduce_ops = arithmetic | bit(ReduceOp::kAvg);
  c.integer_reduce_ops = arithmetic;
  return c;
}

Result submit(const Call& call, const Target& target) {
  const Functions& f = target.functions;
  const auto count = static_cast<size_t>(call.count);
  const auto part = static_cast<size_t>(
      call.counts.empty() ? call.count : call.counts[static_cast<size_t>(target.rank)]);
  const auto bytes = [&](size_t elements) { return elements * c10::elementSize(call.dtype); };
  switch (call.op) {
    case Op::kBarrier:
      return f.all_reduce(target.word, target.word, 1, kUint8, kMax, target.comm, target.stream);
    case Op::kBroadcast:
      return f.broadcast(call.output, call.output, bytes(count), kUint8, call.root, target.comm,
                         target.stream);
    case Op::kReduce:
      return f.reduce(call.input, call.output, count, nccl_type(call.dtype),
                      nccl_operator(call.reduce), call.root, target.comm, target.stream);
    case Op::kAllReduce:
      return f.all_reduce(call.input, call.output, count, nccl_type(call.dtype),
                          nccl_operator(call.reduce), target.comm, target.stream);
    case Op::kAllGather:
      return f.all_gather(call.input, call.output, bytes(part), kUint8, target.comm, target.stream);
    case Op::kReduceScatter:
      return f.reduce_scatter(call.input, call.output, part, nccl_type(call.dtype),
                              nccl_operator(call.reduce), target.comm, target.stream);
    case Op::kSend:
    case Op::kRecv:
      break;  // not available on this stream
    case Op::kGather:
    case Op::kScatter:
    case Op::kAllToAll:
      return exchange(call, target);
  }
  LOCKSTEP_CHECK(false, "every operation is above");
}

}  // namespace lockstep::inline v0::nccl
