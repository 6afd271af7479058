// What a call is given, made into what the engine works on; and what it leaves, made into what was asked for.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/comm/internal/communicator_impl.h"

namespace lockstep::inline v0 {
namespace {

bool usable_as_is(const at::Tensor& tensor, const Plan& plan, at::Device device) {
  return tensor.is_contiguous() && !plan.cast && tensor.device() == device;
}

// The tensor's elements on the engine's device, in the wire's dtype and contiguous; the tensor
// itself if possible.
at::Tensor to_wire(const at::Tensor& tensor, const Plan& plan, at::Device device) {
  if (usable_as_is(tensor, plan, device)) return tensor;
  return tensor.to(device, plan.cast ? plan.wire : tensor.scalar_type(), /*non_blocking=*/false,
                   /*copy=*/true, at::MemoryFormat::Contiguous);
}

// Converts parts in rank order to equal frames of `frame` elements, and back.
at::Tensor pad_parts(const at::Tensor& flat, const std::vector<int64_t>& counts, int64_t frame) {
  at::Tensor padded = at::zeros({static_cast<int64_t>(counts.size()) * frame}, flat.options());
  int64_t at = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    padded.narrow(0, static_cast<int64_t>(r) * frame, counts[r])
        .copy_(flat.narrow(0, at, counts[r]));
    at += counts[r];
  }
  return padded;
}

void unpad_parts(const at::Tensor& padded, const at::Tensor& flat,
                 const std::vector<int64_t>& counts, int64_t frame) {
  int64_t at = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    flat.narrow(0, at, counts[r])
        .copy_(padded.narrow(0, static_cast<int64_t>(r) * frame, counts[r]));
    at += counts[r];
  }
}

void fold_bits(const at::Tensor& sum, const at::Tensor& more, ReduceOp op) {
  if (op == ReduceOp::kBitAnd)
    sum.bitwise_and_(more);
  else if (op == ReduceOp::kBitOr)
    sum.bitwise_or_(more);
  else
    sum.bitwise_xor_(more);
}

}  // namespace

// Makes the raw views that the engine works on, and the steps that must follow the operation.
void Communicator::Impl::stage(const OpArgs& args, const Plan& plan, Call& call,
                               PendingOp& operation) const {
  const int rank = topology_.rank;
  const auto size = static_cast<int64_t>(topology_.size);
  const bool in_place =
      args.input.defined() && args.output.defined() && args.input.is_same(args.output);
  const bool reads_output = args.op == Op::kBroadcast && rank == args.root;

  at::Tensor input, output;  // in the form that the engine gets
  if (args.input.defined()) input = to_wire(args.input, plan, device_);
  if (args.output.defined()) {
    if (in_place)
      output = input;
    else if (reads_output || usable_as_is(args.output, plan, device_))
      output = to_wire(args.output, plan, device_);
    else
      output = at::empty(args.output.sizes(),
                         args.output.options()
                             .device(device_)
                             .dtype(plan.cast ? plan.wire : args.output.scalar_type())
                             .memory_format(at::MemoryFormat::Contiguous));
  }
  const bool copy_back = args.output.defined() && !output.is_same(args.output);
  at::Tensor result = output;  // the source of finish()
  std::function<void()> before_copy;

  if (plan.fold) {
    // Every rank gets all parts, and reduces the ones that it needs.
    const int64_t each = input.numel();
    const at::Tensor all = at::empty({size, each}, input.options());
    const int64_t begin =
        args.op == Op::kReduceScatter
            ? std::accumulate(args.counts.begin(), args.counts.begin() + rank, int64_t{0})
            : 0;
    if (args.output.defined()) {
      before_copy = [all, to = args.output, op = plan.reduce, begin] {
        const at::Tensor mine = all.narrow(1, begin, to.numel());
        const at::Tensor sum = mine[0].clone();
        for (int64_t r = 1; r < all.size(0); ++r) fold_bits(sum, mine[r], op);
        to.copy_(sum.view(to.sizes()));
      };
    }
    output = all;
    // The ranks' comparison of calls nevertheless treats it as a reduction.
    call.note.key = (call.note.key ^ (static_cast<uint64_t>(args.op) * kReduceOpCount +
                                      static_cast<uint64_t>(plan.reduce) + 1)) *
                    0x9e3779b97f4a7c15ULL;
    call.count = 0;
    call.counts.assign(static_cast<size_t>(size), each);
    call.uniform = true;
  } else if (plan.slice) {
    // The engine sums all parts; this rank keeps its own.
    at::Tensor whole = input.is_same(args.input) ? input.clone() : input;
    const int64_t begin =
        std::accumulate(args.counts.begin(), args.counts.begin() + rank, int64_t{0});
    const at::Tensor part = whole.view({-1}).narrow(0, begin, args.counts[rank]);
    before_copy = [part, to = args.output] { to.copy_(part.view(to.sizes())); };
    input = output = whole;
    call.count = whole.numel();
  } else if (plan.pad) {
    const int64_t frame = *std::max_element(args.counts.begin(), args.counts.end());
    if (args.op == Op::kScatter) {
      if (input.defined()) input = pad_parts(input.view({-1}), args.counts, frame);
      const at::Tensor padded = at::empty({frame}, output.options());
      before_copy = [padded, to = output, n = args.counts[rank]] {
        to.view({-1}).copy_(padded.narrow(0, 0, n));
      };
      output = padded;
    } else {
      input = pad_parts(input.view({-1}), {args.counts[rank]}, frame);
      if (output.defined()) {
        const at::Tensor padded = at::empty({size * frame}, output.options());
        before_copy = [padded, to = output, counts = args.counts, frame] {
          unpad_parts(padded, to.view({-1}), counts, frame);
        };
        output = padded;
      }
    }
    call.counts.assign(args.counts.size(), frame);
  }
  if (plan.divide) {
    before_copy = [inner = std::move(before_copy), output, size] {
      if (output.defined()) output.div_(static_cast<double>(size));
      if (inner) inner();
    };
  }
  if (before_copy || copy_back) {
    const bool copy_result = copy_back && !plan.slice && !plan.fold;
    operation.finish = [before_copy = std::move(before_copy), copy_result, result,
                        to = args.output] {
      if (before_copy) before_copy();
      if (copy_result) to.copy_(result);
    };
  }

  if (plan.bytes) {
    const auto element = static_cast<int64_t>(c10::elementSize(
        args.input.defined() ? args.input.scalar_type() : args.output.scalar_type()));
    call.count *= element;
    for (int64_t& count : call.counts) count *= element;
    for (int64_t& count : call.recv_counts) count *= element;
  }
  if (input.defined()) call.input = data_of(input);
  if (output.defined()) call.output = mutable_data_of(output);
  for (const at::Tensor& tensor : {args.input, args.output, input, output}) {
    if (tensor.defined()) operation.keep.push_back(tensor);
  }
}

}  // namespace lockstep::inline v0
