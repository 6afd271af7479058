// The reading and the checks that the configurations of all models share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"

namespace lockstep::inline v0::internal {

// A member into its field, which stays where it is absent. Any number: check() says what makes sense.
inline void read_field(const JsonObject& file, const char* name, int64_t& value) {
  value = file.whole_or(value, name, -JsonObject::kMostWhole);
}
inline void read_field(const JsonObject& file, const char* name, double& value) {
  value = file.number_or(value, name, -JsonObject::kAnyNumber, JsonObject::kAnyNumber);
}

inline void check_size(const char* of, const char* name, int64_t value) {
  constexpr int64_t kMost = 1 << 30;
  if (value < 1 || value > kMost)
    throw InvalidArgument(std::string(of) + ": " + name + " is " + std::to_string(value) +
                          "; it must be 1 or more");
}

// A count of parameters as a whole number, at most JsonObject::kMostWhole.
inline int64_t counted(double parameters) {
  return static_cast<int64_t>(std::min(parameters, static_cast<double>(JsonObject::kMostWhole)));
}

inline void check_probability(const char* of, const char* name, double value) {
  if (!(value >= 0 && value < 1))
    throw InvalidArgument(std::string(of) + ": " + name + " is " + std::to_string(value) +
                          "; it must be in [0, 1)");
}

}  // namespace lockstep::inline v0::internal
