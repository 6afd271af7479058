// Group: calls that NCCL begins together. Not a public header.
#pragma once

#include "lockstep/comm/nccl/nccl_library.h"

namespace lockstep::nccl {

// From construction to end(), on one thread. What one of the calls was refused for, ncclGroupEnd need
// not say.
class Group {
 public:
  explicit Group(const Functions& functions) : functions_(functions) {
    add(functions_.group_start());
  }

  // What a call inside has returned.
  void add(Result result) {
    if (first_ == kSuccess && result != kInProgress) first_ = result;
  }
  // To be called once: the first error, else what NCCL says of the whole.
  Result end() {
    const Result whole = functions_.group_end();
    return first_ == kSuccess ? whole : first_;
  }

 private:
  const Functions& functions_;
  Result first_ = kSuccess;
};

}  // namespace lockstep::nccl
