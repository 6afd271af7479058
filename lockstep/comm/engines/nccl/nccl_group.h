// Group: calls that NCCL begins together. Not a public header.
#pragma once

#include "lockstep/comm/engines/nccl/nccl_library.h"

namespace lockstep::inline v0::nccl {

// Lasts from construction to end(), on one thread. ncclGroupEnd may not report the error of a call
// inside, so add() keeps it.
class Group {
 public:
  explicit Group(const Functions& functions) : functions_(functions) {
    add(functions_.group_start());
  }

  // Notes the result of a call inside.
  void add(Result result) {
    if (first_ == kSuccess && result != kInProgress) first_ = result;
  }
  // Called once. Returns the first error, otherwise NCCL's result for the whole group.
  Result end() {
    const Result whole = functions_.group_end();
    return first_ == kSuccess ? whole : first_;
  }

 private:
  const Functions& functions_;
  Result first_ = kSuccess;
};

}  // namespace lockstep::inline v0::nccl
