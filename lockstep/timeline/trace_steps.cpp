#include "lockstep/timeline/trace_steps.h"

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

TraceSteps parse_trace_steps(std::string_view text, const std::string& name) {
  constexpr int64_t kMost = int64_t{1} << 53;
  const size_t colon = text.find(':');
  const auto first = parse_int(text.substr(0, colon), 1, kMost);
  const auto last =
      colon == std::string_view::npos ? first : parse_int(text.substr(colon + 1), 1, kMost);
  if (!first || !last || *last < *first)
    throw InvalidArgument(name + " is '" + std::string(text) +
                          "'; give the first and the last step, such as 10:12, or one step; the "
                          "first step of a training is 1");
  return {*first, *last};
}

std::string to_string(const TraceSteps& steps) {
  return std::to_string(steps.first) + ":" + std::to_string(steps.last);
}

}  // namespace lockstep::inline v0
