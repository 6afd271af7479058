// The common abilities of gloo and mpi, the CPU engines that are not Lockstep's own. Not a public
// header.
#pragma once

#include <string>
#include <utility>

#include "lockstep/comm/backend/capabilities.h"

namespace lockstep::inline v0 {

inline Capabilities foreign_capabilities(std::string backend) {
  Capabilities c;
  c.backend = std::move(backend);
  c.processes = true;
  c.tags = true;
  c.ops.fill(true);
  c.reduce_dtypes = bit(at::kFloat) | bit(at::kDouble) | bit(at::kChar) | bit(at::kByte) |
                    bit(at::kInt) | bit(at::kLong);
  const uint32_t arithmetic =
      bit(ReduceOp::kSum) | bit(ReduceOp::kProduct) | bit(ReduceOp::kMin) | bit(ReduceOp::kMax);
  c.float_reduce_ops = arithmetic;
  c.integer_reduce_ops =
      arithmetic | bit(ReduceOp::kBitAnd) | bit(ReduceOp::kBitOr) | bit(ReduceOp::kBitXor);
  return c;
}

}  // namespace lockstep::inline v0
