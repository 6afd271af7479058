#include "lockstep/comm/internal/compose.h"

namespace lockstep::inline v0 {
namespace {

bool has(uint32_t set, uint32_t one) {
  return (set & one) != 0;
}

Plan unsupported(Plan plan, const Capabilities& c, const std::string& what) {
  plan.support = Support::kUnsupported;
  plan.reason = "backend " + c.backend + " has no " + what;
  return plan;
}

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
}

// bool is 0 or 1 in uint8, so every boolean reduction is a minimum, a maximum or an exclusive or.
ReduceOp on_bytes(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
      return ReduceOp::kMax;
    case ReduceOp::kBitXor:
      return ReduceOp::kBitXor;
    default:
      return ReduceOp::kMin;
  }
}

Plan plan_reduction(Plan plan, const Capabilities& c, at::ScalarType dtype) {
  if (dtype == at::kBool &&
      !(has(c.reduce_dtypes, bit(at::kBool)) && has(c.bool_reduce_ops, bit(plan.reduce)))) {
    plan.cast = true;
    plan.wire = at::kByte;
    plan.reduce = on_bytes(plan.reduce);
  } else if (accumulation_type(dtype) != dtype && !has(c.reduce_dtypes, bit(dtype))) {
    plan.cast = true;
    plan.wire = accumulation_type(dtype);
  } else if (dtype == at::kShort && !has(c.reduce_dtypes, bit(dtype))) {
    plan.cast = true;
    plan.wire = at::kInt;
  }
  const bool floating = at::isFloatingType(plan.wire);
  if (plan.reduce == ReduceOp::kAvg && !has(c.float_reduce_ops, bit(ReduceOp::kAvg))) {
    plan.reduce = ReduceOp::kSum;
    plan.divide = true;
  }
  const uint32_t ops = plan.wire == at::kBool ? c.bool_reduce_ops
                       : floating             ? c.float_reduce_ops
                                              : c.integer_reduce_ops;
  if (!has(c.reduce_dtypes, bit(plan.wire)) || !has(ops, bit(plan.reduce))) {
    // Used for flags and similar short tensors.
    if (is_bitwise(plan.reduce) && has(c.move_dtypes, bit(plan.wire)) &&
        c.ops[static_cast<int>(Op::kAllGather)]) {
      plan.fold = true;
      plan.op = Op::kAllGather;
      plan.support = Support::kComposed;
      return plan;
    }
    return unsupported(plan, c,
                       std::string(to_string(plan.reduce)) + " on " + dtype_name(plan.wire));
  }
  if (plan.cast || plan.divide) plan.support = Support::kComposed;
  return plan;
}

}  // namespace

Plan plan_call(const Capabilities& c, Op op, at::ScalarType dtype, ReduceOp reduce, bool v_form) {
  Plan plan;
  plan.op = op;
  plan.wire = dtype;
  plan.reduce = reduce;
  const auto native = [&c](Op o, bool v) {
    return v ? c.v_ops[static_cast<int>(o)] : c.ops[static_cast<int>(o)];
  };
  if (is_reduction(op)) {
    plan = plan_reduction(plan, c, dtype);
    if (plan.support == Support::kUnsupported || plan.fold) return plan;
  } else if (op != Op::kBarrier && !has(c.move_dtypes, bit(dtype))) {
    plan.bytes = true;
    plan.wire = at::kByte;
    plan.support = Support::kComposed;
  }
  if (native(op, v_form)) return plan;

  const bool equal_parts = native(op, false);
  if (v_form && equal_parts && (op == Op::kGather || op == Op::kAllGather || op == Op::kScatter)) {
    plan.pad = true;
    plan.support = Support::kComposed;
    return plan;
  }
  if (op == Op::kReduceScatter && native(Op::kAllReduce, false)) {
    plan.op = Op::kAllReduce;
    plan.slice = true;
    plan.support = Support::kComposed;
    return plan;
  }
  return unsupported(
      plan, c, std::string(to_string(op)) + (v_form && equal_parts ? " with unequal parts" : ""));
}

}  // namespace lockstep::inline v0
