#include "lockstep/parallel/horovod/readiness.h"

#include <gtest/gtest.h>

namespace lockstep::inline v0::horovod {
namespace {

TEST(Readiness, RoundsComeUpByBytesNotByNumber) {
  Readiness ready({100, 1, 1, 98}, 1, 4);
  EXPECT_EQ(ready.rounds(), 4u);
  EXPECT_TRUE(ready.arrived(1));
  EXPECT_EQ(ready.rounds_due(), 0u);
  EXPECT_TRUE(ready.arrived(3));  // 99 of 200 bytes: beyond one quarter
  EXPECT_EQ(ready.rounds_due(), 1u);
  EXPECT_EQ(ready.said(0), (Bits{0b1010}));
  EXPECT_TRUE(ready.arrived(0));  // and beyond two more at once
  EXPECT_EQ(ready.rounds_due(), 3u);
  EXPECT_EQ(ready.said(1), (Bits{0b1011}));
  EXPECT_EQ(ready.said(2), (Bits{0b1011}));
}

TEST(Readiness, EveryRankHasTheSameNumberOfRoundsWhateverItUsed) {
  for (const size_t used : {0, 1, 5, 9}) {
    Readiness ready(std::vector<int64_t>(9, 4), 1, 3);
    for (size_t i = 0; i < used; ++i) ready.arrived(i);
    ready.close();
    EXPECT_EQ(ready.rounds_due(), ready.rounds() - 1) << used;
    EXPECT_EQ(ready.any(), used > 0);
  }
}

TEST(Readiness, NoMoreRoundsThanParametersAndAtLeastOne) {
  EXPECT_EQ(Readiness({4, 4}, 1, 8).rounds(), 2u);
  EXPECT_EQ(Readiness({}, 1, 8).rounds(), 1u);
  EXPECT_EQ(Readiness({4, 4}, 1, 1).rounds(), 1u);
}

TEST(Readiness, AGradientIsReadyAfterItsLastPass) {
  Readiness ready({4, 4}, 3, 2);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_TRUE(ready.arrived(0));
    EXPECT_EQ(ready.rounds_due(), 0u);
  }
  EXPECT_TRUE(ready.arrived(0));
  EXPECT_EQ(ready.rounds_due(), 1u);
  EXPECT_FALSE(ready.arrived(0)) << "a fourth time";
  EXPECT_EQ(ready.backwards(), 3);
  EXPECT_EQ(ready.used(), (Bits{0b01}));
  ready.reset();
  EXPECT_FALSE(ready.any());
  EXPECT_TRUE(ready.arrived(1));
  EXPECT_EQ(ready.used(), (Bits{0b10})) << "in any pass";
}

}  // namespace
}  // namespace lockstep::inline v0::horovod
