#include "lockstep/testing/exact.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace lockstep::inline v0::testing {
namespace {

// After so many elements the hash of exact_input repeats: a multiple of 13, and so is a seventh of it.
constexpr int64_t kPeriod = 7 * 13;

at::Tensor one_period(int rank, int64_t count, at::ScalarType dtype, ReduceOp op) {
  const at::Tensor index = at::arange(std::min(count, kPeriod), at::kLong);
  // A cheap hash: neighbours and ranks differ, small numbers come out.
  const at::Tensor hash =
      (index * 31 + (index / 7).floor().to(at::kLong) + rank * 17).remainder(13);
  at::Tensor values;
  switch (op) {
    case ReduceOp::kProduct:
      values = hash.remainder(2) + 1;
      break;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      values = hash * 9;
      break;
    default:
      values = hash - (dtype == at::kByte || dtype == at::kBool ? 0 : 6);
      break;
  }
  if (dtype == at::kBool) return hash.remainder(3).ne(0);
  if (op == ReduceOp::kProduct && dtype != at::kByte)
    values = at::where(hash.remainder(5).eq(0), values.neg(), values);
  return values.to(dtype);
}

at::Tensor repeated(const at::Tensor& period, int64_t count) {
  if (count <= period.numel()) return period;
  const int64_t times = count / kPeriod, rest = count % kPeriod;
  const at::Tensor all = at::empty({count}, period.options());
  all.narrow(0, 0, times * kPeriod).view({times, kPeriod}).copy_(period);
  all.narrow(0, times * kPeriod, rest).copy_(period.narrow(0, 0, rest));
  return all;
}

}  // namespace

at::Tensor exact_input(int rank, int64_t count, at::ScalarType dtype, ReduceOp op) {
  return repeated(one_period(rank, count, dtype, op), count);
}

at::Tensor exact_result(int ranks, int64_t count, at::ScalarType dtype, ReduceOp op) {
  std::vector<at::Tensor> parts;
  for (int r = 0; r < ranks; ++r) parts.push_back(one_period(r, count, dtype, op));
  return repeated(exact_reduction(parts, op), count);
}

at::Tensor exact_reduction(const std::vector<at::Tensor>& parts, ReduceOp op) {
  const at::ScalarType dtype = parts[0].scalar_type();
  const at::ScalarType wide = at::isFloatingType(dtype) ? at::kDouble
                              : dtype == at::kBool      ? at::kBool
                                                        : at::kLong;
  at::Tensor result = parts[0].to(wide);
  for (size_t i = 1; i < parts.size(); ++i) {
    const at::Tensor next = parts[i].to(wide);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        result = wide == at::kBool ? result.logical_or(next) : result + next;
        break;
      case ReduceOp::kProduct:
        result = wide == at::kBool ? result.logical_and(next) : result * next;
        break;
      case ReduceOp::kMin:
        result = wide == at::kBool ? result.logical_and(next) : at::minimum(result, next);
        break;
      case ReduceOp::kMax:
        result = wide == at::kBool ? result.logical_or(next) : at::maximum(result, next);
        break;
      case ReduceOp::kBitAnd:
        result = result.bitwise_and(next);
        break;
      case ReduceOp::kBitOr:
        result = result.bitwise_or(next);
        break;
      case ReduceOp::kBitXor:
        result = result.bitwise_xor(next);
        break;
    }
  }
  if (op == ReduceOp::kAvg) {
    // Divided where Lockstep divides: in float32 for the 16-bit types, else in the dtype itself.
    result = result.to(accumulation_type(dtype)) / static_cast<double>(parts.size());
  }
  return result.to(dtype);
}

}  // namespace lockstep::inline v0::testing
