#include "lockstep/timeline/trace_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::trace_steps_test {

std::string error_of(const std::string& text) {
  try {
    parse_trace_steps(text, "--trace-steps");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(TraceSteps, AreTwoStepsOrOne) {
  EXPECT_EQ(parse_trace_steps("10:12", "x"), (TraceSteps{10, 12}));
  EXPECT_EQ(parse_trace_steps("7", "x"), (TraceSteps{7, 7}));
  EXPECT_EQ(to_string(parse_trace_steps("3:3", "x")), "3:3");
}

TEST(TraceSteps, MistakesAreNamed) {
  for (const char* text : {"", ":", "0:3", "12:10", "a:b", "1:", ":3", "1:2:3", "-1", "1.5"})
    EXPECT_EQ(error_of(text).find("--trace-steps is '" + std::string(text) + "'; give the first"),
              0U)
        << error_of(text);
}

}  // namespace lockstep::inline v0::trace_steps_test
