// BitwiseSum: an all_reduce whose result has bits of its own for every order of summation, and is
// checked bit by bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0::testing {

// What the ranks give is made here, once, by whole numbers: no vector maths of libtorch, whose
// first calls on several threads may differ (comm/internal/vector_maths.h). Constant afterwards: any thread.
class LOCKSTEP_API BitwiseSum {
 public:
  // float32 of `count` elements on each of `size` ranks.
  BitwiseSum(int size, int64_t count);

  // Sums up with all_reduce. Collective. "" if this rank gave what it was to give and got the sum
  // in rank order, every bit; else one line: rank, operation, size, which of the arguments, the
  // copy that was reduced and the result differed, and the first element that did.
  std::string check(Communicator& comm) const;

 private:
  std::vector<at::Tensor> arguments_;  // by rank
  std::vector<uint64_t> hashes_;       // of the arguments
  at::Tensor sum_;
};

}  // namespace lockstep::inline v0::testing
