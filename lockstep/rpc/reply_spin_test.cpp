#include "lockstep/rpc/internal/reply_spin.h"

#include <gtest/gtest.h>

namespace lockstep::inline v0::rpc::internal::reply_spin_test {
namespace {

// In how many of so many waits it looks, none of which finds anything.
int looks_in_vain(ReplySpin& spin, int waits) {
  int looks = 0;
  for (int i = 0; i < waits; ++i) {
    if (!spin.worth_it()) continue;
    ++looks;
    spin.ended(false);
  }
  return looks;
}

TEST(ReplySpin, QuickRepliesAreLookedForEveryTime) {
  ReplySpin spin(2);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(spin.worth_it());
    spin.ended(true);
  }
}

TEST(ReplySpin, SlowOnesSoonAreNot) {
  ReplySpin spin(2);
  EXPECT_LE(looks_in_vain(spin, 64), 6);
  EXPECT_LE(looks_in_vain(spin, 6400), 101) << "one in 64";
  // Once one is quick again, the next ones are looked for.
  while (!spin.worth_it()) {
  }
  spin.ended(true);
  EXPECT_TRUE(spin.worth_it());
}

TEST(ReplySpin, OneProcessorIsLeftToTheOtherEnd) {
  ReplySpin spin(1);
  EXPECT_EQ(looks_in_vain(spin, 1000), 0);
}

}  // namespace
}  // namespace lockstep::inline v0::rpc::internal::reply_spin_test
