// The treatment of a parameter that no rank used in the backwards that a reduction of gradients
// covers.
#pragma once

#include <cstdint>

namespace lockstep::inline v0 {

// The treatment of the gradient of such a parameter.
enum class Unused : uint8_t {
  kLeave,  // its gradient is unchanged: undefined, or with its former values
  kZero,   // an undefined gradient becomes zero
  kThrow,  // InvalidArgument that names it, on all ranks; the other gradients are reduced
};

}  // namespace lockstep::inline v0
