#include "lockstep/recover/resumption.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::recover::resumption_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr RankProgress kNew{};
constexpr RankProgress at(int64_t step) {
  return {.whole = true, .step = step};
}
constexpr RankProgress agreeing(int64_t step) {
  return {.whole = true, .step = step, .agreeing = true};
}

Resumption decide(const std::vector<RankProgress>& ranks) {
  return decide_resumption(ranks);
}

TEST(Resumption, ARunOfNewRanksBegins) {
  const Resumption plan = decide({kNew, kNew, kNew});
  EXPECT_TRUE(plan.anew);
  EXPECT_EQ(plan.step, 0);
}

TEST(Resumption, AStepThatNobodyAgreedOnIsRepeated) {
  const Resumption plan = decide({at(7), kNew, at(7)});
  EXPECT_FALSE(plan.anew);
  EXPECT_EQ(plan.step, 7);
  EXPECT_EQ(plan.source, 0);
  EXPECT_THAT(plan.newcomers, ElementsAre(Resumption::Newcomer{1, 2}));
  EXPECT_THAT(plan.behind, IsEmpty());
  EXPECT_EQ(decide({agreeing(7), kNew, agreeing(7)}).step, 7)
      << "the dead rank may not have come to the agreement";
}

TEST(Resumption, AStepThatOneRankTookIsCompletedByAll) {
  const Resumption plan = decide({agreeing(7), at(8), kNew});
  EXPECT_EQ(plan.step, 8);
  EXPECT_THAT(plan.behind, ElementsAre(0));
  EXPECT_THAT(plan.newcomers, ElementsAre(Resumption::Newcomer{2, 0}));
}

TEST(Resumption, TheOtherNeighbourKeepsACopyToo) {
  EXPECT_THAT(decide({kNew, kNew, at(3), at(3)}).newcomers,
              ElementsAre(Resumption::Newcomer{0, 3}, Resumption::Newcomer{1, 2}));
  RankProgress without = at(3);
  without.has_copies = false;  // it has just arrived itself
  EXPECT_THAT(decide({kNew, without, at(3)}).newcomers, ElementsAre(Resumption::Newcomer{0, 2}));
  EXPECT_THAT(decide({at(3), kNew}).newcomers, ElementsAre(Resumption::Newcomer{1, 0}));
}

TEST(Resumption, AStateThatWentWithAllItsKeepersIsNamed) {
  EXPECT_THAT([] { decide({kNew, kNew, kNew, at(3), at(3)}); },
              ThrowsMessage<PeerLost>(HasSubstr("what rank 1 had alone went with rank 2 and 0")));
}

TEST(Resumption, ARankThatHadJustBegunNeedsNoKeeper) {
  constexpr RankProgress begun{.has_copies = false, .has_own = true};
  EXPECT_THAT(decide({at(0), begun, begun, kNew}).newcomers,
              ElementsAre(Resumption::Newcomer{1, 1}, Resumption::Newcomer{2, 2},
                          Resumption::Newcomer{3, 0}));
}

TEST(Resumption, RanksThatTookOtherStepsAreNamed) {
  EXPECT_THAT([] { decide({at(7), at(8), kNew}); },
              ThrowsMessage<Mismatch>(HasSubstr("rank 0 has done 7 steps, others 8")));
  EXPECT_THROW(decide({agreeing(6), at(8)}), Mismatch);
}

}  // namespace
}  // namespace lockstep::inline v0::recover::resumption_test
