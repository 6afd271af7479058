#include "lockstep/comm/engines/peer/reduce.h"

#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/logical_xor.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/where.h>

namespace lockstep::inline v0::peer {
namespace {

// Chooses between a pair as the host's engines do (reduce_isa.h), also for zeros and NaN:
// libtorch's minimum and maximum do not specify which zero results.
at::Tensor& choose(at::Tensor& to, const at::Tensor& a, const at::Tensor& b, bool least) {
  if (!a.is_floating_point()) return least ? at::minimum_out(to, a, b) : at::maximum_out(to, a, b);
  const at::Tensor first = (least ? at::lt(a, b) : at::gt(a, b)).logical_or_(a.isnan());
  return at::where_out(to, first, a, b);
}

void combine(at::Tensor& to, const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  const bool logical = a.scalar_type() == at::kBool;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      logical ? at::logical_or_out(to, a, b) : at::add_out(to, a, b);
      break;
    case ReduceOp::kProduct:
      logical ? at::logical_and_out(to, a, b) : at::mul_out(to, a, b);
      break;
    case ReduceOp::kMin:
      logical ? at::logical_and_out(to, a, b) : choose(to, a, b, true);
      break;
    case ReduceOp::kMax:
      logical ? at::logical_or_out(to, a, b) : choose(to, a, b, false);
      break;
    case ReduceOp::kBitAnd:
      logical ? at::logical_and_out(to, a, b) : at::bitwise_and_out(to, a, b);
      break;
    case ReduceOp::kBitOr:
      logical ? at::logical_or_out(to, a, b) : at::bitwise_or_out(to, a, b);
      break;
    case ReduceOp::kBitXor:
      logical ? at::logical_xor_out(to, a, b) : at::bitwise_xor_out(to, a, b);
      break;
  }
}

}  // namespace

void reduce_into(at::Tensor to, std::span<const at::Tensor> sources, ReduceOp op) {
  if (sources.size() == 1) {
    to.copy_(sources[0]);
    return;
  }
  const at::ScalarType wide = accumulation_type(to.scalar_type());
  const bool in_wide = wide != to.scalar_type();
  at::Tensor sum = sources[0];
  at::Tensor scratch;
  if (in_wide || sources.size() > 2) scratch = at::empty(to.sizes(), to.options().dtype(wide));
  if (in_wide) sum = scratch.copy_(sum);
  for (size_t i = 1; i < sources.size(); ++i) {
    // Only the last one may write to `to`, which may be a source.
    at::Tensor& result = !in_wide && i + 1 == sources.size() ? to : scratch;
    combine(result, sum, sources[i], op);
    sum = result;
  }
  // Divides by a tensor on the device: for a number of the host, the kernel would multiply by its
  // inverse.
  if (op == ReduceOp::kAvg)
    sum.div_(at::full({}, static_cast<double>(sources.size()), sum.options()));
  if (in_wide) to.copy_(sum);
}

}  // namespace lockstep::inline v0::peer
