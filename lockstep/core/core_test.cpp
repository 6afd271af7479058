#include <gtest/gtest.h>

#include <map>

#include "lockstep/core/cpus.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace {

TEST(Env, ParsesWholeNumbersOnly) {
  EXPECT_EQ(parse_int("42"), 42);
  EXPECT_EQ(parse_int("42x"), std::nullopt);
  EXPECT_EQ(parse_int(""), std::nullopt);
  EXPECT_EQ(parse_int("7", 0, 5), std::nullopt);
}

}  // namespace
}  // namespace lockstep
