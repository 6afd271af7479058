// How an operation is done on an engine that lacks it: decided here as data, carried out by
// Communicator.
#pragma once

#include <string>

#include "lockstep/comm/backend/capabilities.h"
#include "lockstep/comm/backend/types.h"

namespace lockstep::inline v0 {

struct Plan {
  Support support = Support::kNative;
  std::string reason;                // why it is not supported, when kUnsupported
  Op op = Op::kBarrier;              // what the engine runs
  at::ScalarType wire = at::kByte;   // the dtype it sees
  ReduceOp reduce = ReduceOp::kSum;  // the reduction it does
  bool bytes = false;                // tensors are handed over as uint8 of the same memory
  bool cast = false;                 // tensors are converted to `wire` and back
  bool divide = false;               // the result is divided by the number of ranks afterwards
  bool pad = false;                  // unequal parts are padded to the largest
  bool slice = false;                // reduce_scatter by all_reduce: every rank keeps its part
  bool fold = false;  // a reduction by all_gather: every rank reduces the parts that it needs
};

// Pure. `reduce` is used for reductions only.
// Requires: is_supported_dtype and is_valid_reduction.
Plan plan_call(const Capabilities& capabilities, Op op, at::ScalarType dtype, ReduceOp reduce,
               bool v_form);

}  // namespace lockstep::inline v0
