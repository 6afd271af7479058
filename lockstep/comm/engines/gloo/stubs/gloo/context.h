// The PyTorch wheel ships ProcessGroupGloo.hpp and gloo's code, but not gloo's headers. These are
// the declarations that ProcessGroupGloo.hpp needs to compile; no object of these types is made or
// looked into by Lockstep.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
