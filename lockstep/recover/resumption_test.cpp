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

// Two hosts of two ranks, one of which is lost with both of its ranks.
TEST(Resumption, TheCopiesOfALostHostAreOnOtherHosts) {
  RankProgress left = at(3), gone = kNew;
  left.local_size = gone.local_size = 2;
  EXPECT_THAT(decide({left, left, gone, gone}).newcomers,
              ElementsAre(Resumption::Newcomer{2, 0}, Resumption::Newcomer{3, 1}));
  EXPECT_THAT(decide({left, left, gone, gone, left, left}).newcomers,
              ElementsAre(Resumption::Newcomer{2, 4}, Resumption::Newcomer{3, 5}));
  EXPECT_THAT(decide({left, gone, left, gone}).newcomers,
              ElementsAre(Resumption::Newcomer{1, 2}, Resumption::Newcomer{3, 0}))
      << "a rank of each host, which keep each other's, and their neighbours too";
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

RankProgress was(int former, int of, int64_t step = 5) {
  RankProgress rank = at(step);
  rank.former = former;
  rank.former_size = of;
  return rank;
}

TEST(Resumption, RanksThatLeftAreFoundWithWhoeverKeepsACopyOfTheirs) {
  using Gone = Resumption::Gone;
  // Of four, 0 and 2 have left. Rank 1 is 0 now, and keeps copies of both.
  EXPECT_THAT(decide({was(1, 4), was(3, 4)}).gone, ElementsAre(Gone{0, 0}, Gone{2, 1}));
  // Of five, 1 to 3 have left, and with 2 both who had its copy.
  EXPECT_THAT(decide({was(0, 5), was(4, 5)}).gone,
              ElementsAre(Gone{1, 0}, Gone{2, -1}, Gone{3, 1}));
  EXPECT_THAT(decide({was(2, 3)}).gone, ElementsAre(Gone{0, 0}, Gone{1, 0}));
  EXPECT_THAT(decide({was(0, 2), was(1, 2)}).gone, IsEmpty());
  EXPECT_THAT(decide({at(0), at(0)}).gone, IsEmpty()) << "before the first moment at one step";
  // One that had its own alone, since it died before all had begun, is no newcomer's place.
  RankProgress begun = was(2, 3, 0);
  begun.whole = false;
  begun.has_own = true;
  EXPECT_THAT(decide({was(0, 3, 0), begun}).gone, ElementsAre(Gone{1, 1}));
  // One that completes the step of the others inherits like them.
  RankProgress behind = was(2, 3, 4);
  behind.agreeing = true;
  EXPECT_THAT(decide({was(1, 3), behind}).gone, ElementsAre(Gone{0, 0}));
  // Where a new process takes its place, nobody has left.
  EXPECT_THAT(decide({was(0, 3), kNew, was(2, 3)}).gone, IsEmpty());
}

}  // namespace
}  // namespace lockstep::inline v0::recover::resumption_test
