// Counts as numbers to compute with.
#pragma once

#include <cstdint>

namespace lockstep::inline v0::plan {

inline double real(int64_t number) {
  return static_cast<double>(number);
}

}  // namespace lockstep::inline v0::plan
