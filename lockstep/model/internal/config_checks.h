// What the configurations of models refuse in one way.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::internal {

inline void check_size(const char* of, const char* name, int64_t value) {
  constexpr int64_t kMost = 1 << 30;
  if (value < 1 || value > kMost)
    throw InvalidArgument(std::string(of) + ": " + name + " is " + std::to_string(value) +
                          "; it must be 1 or more");
}

inline void check_probability(const char* of, const char* name, double value) {
  if (!(value >= 0 && value < 1))
    throw InvalidArgument(std::string(of) + ": " + name + " is " + std::to_string(value) +
                          "; it must be in [0, 1)");
}

}  // namespace lockstep::internal
