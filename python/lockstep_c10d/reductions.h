// Reductions: c10d's reduction operations in the communicator's words.
#pragma once

#include <ATen/ops/mul.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>

#include "lockstep/comm/backend/types.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::python {

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  std::optional<at::Scalar> factor;  // of every rank's input: PREMUL_SUM
  bool complex_as_pairs = false;     // right for complex numbers too, part by part

  // In place.
  void scale(const at::Tensor& tensor) const {
    if (factor) tensor.mul_(*factor);
  }
  // Leaves the tensor as it is.
  at::Tensor scaled(const at::Tensor& tensor) const {
    return factor ? at::mul(tensor, *factor).to(tensor.scalar_type()) : tensor;
  }
};

// Throws InvalidArgument.
inline Reduction to_reduction(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {ReduceOp::kSum, std::nullopt, true};
    case c10d::ReduceOp::AVG:
      return {ReduceOp::kAvg, std::nullopt, true};
    case c10d::ReduceOp::PRODUCT:
      return {ReduceOp::kProduct, std::nullopt, false};
    case c10d::ReduceOp::MIN:
      return {ReduceOp::kMin, std::nullopt, false};
    case c10d::ReduceOp::MAX:
      return {ReduceOp::kMax, std::nullopt, false};
    case c10d::ReduceOp::BAND:
      return {ReduceOp::kBitAnd, std::nullopt, false};
    case c10d::ReduceOp::BOR:
      return {ReduceOp::kBitOr, std::nullopt, false};
    case c10d::ReduceOp::BXOR:
      return {ReduceOp::kBitXor, std::nullopt, false};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      if (factor == nullptr) throw InvalidArgument("PREMUL_SUM comes without its factor");
      return {ReduceOp::kSum,
              factor->tensor_factor.defined() ? factor->tensor_factor.item()
                                              : at::Scalar(factor->double_factor),
              true};
    }
    default:
      throw InvalidArgument("lockstep does not know this reduction operation");
  }
}

}  // namespace lockstep::inline v0::python
