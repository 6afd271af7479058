// TraceSteps: which steps of a training a trace shows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Steps of the optimizer, counted from 1, both included.
struct TraceSteps {
  int64_t first = 1;
  int64_t last = 1;

  bool operator==(const TraceSteps&) const = default;
};

// "10:12" or "10". Pure.
// Throws: InvalidArgument that begins with `name`.
LOCKSTEP_API TraceSteps parse_trace_steps(std::string_view text, const std::string& name);
// "10:12". Pure.
LOCKSTEP_API std::string to_string(const TraceSteps& steps);

}  // namespace lockstep::inline v0
